"""Few queries over keys and values as caches hold them: 8 bits with scales, pages."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise import _native
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.paths import ISAS

PAGE = 128
on_sets = pytest.mark.parametrize("isa", ISAS)
on_dtypes = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str
)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scales: tuple[Tensor, Tensor] | None = None,
    pages: Tensor | None = None,
    kv_len: int | None = None,
) -> Tensor:
    output = torch.full((*query.shape[:-1], value.shape[-1]), torch.nan, dtype=query.dtype)
    key_scale, value_scale = (None, None) if scales is None else scales
    _native.kernels.attend_stored(
        *(query, key, value, output, None, key_scale, value_scale, pages),
        key.shape[2] if kv_len is None else kv_len,
        *(None, None, None, None, None, 0.0, 0.0, 0, None, query.shape[-1] ** -0.5, 2),
    )
    return output


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows of 8 bits and the scale of each."""
    scale = x.abs().amax(-1) / 127
    return (x / scale.clamp(min=1e-30)[..., None]).round().to(torch.int8), scale


def defined(query: Tensor, key: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    group = query.shape[1] // key.shape[1]
    q, k, v = (x.to(dtype) for x in (query, key, value))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    weights = (q @ k.mT * query.shape[-1] ** -0.5).softmax(-1)
    mixed: Tensor = weights @ v
    return mixed


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, ...]:
    """Draw batch, kv_heads, group, q_len, kv_len, head_dim, value_dim."""
    return (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 2, 4, 5])),
        draw(st.sampled_from([1, 2, 7, 16])),
        draw(st.sampled_from([1, 2, 3, 63, 65, 128, 131, 300])),
        draw(st.sampled_from([1, 8, 37, 64, 80, 130])),
        draw(st.sampled_from([1, 16, 29, 64, 70])),
    )


@on_sets
@on_dtypes
@settings(max_examples=25)
@given(sizes(), st.integers(0, 99))
def test_rows_of_8_bits_are_read_as_what_they_stand_for(
    isa: str, dtype: torch.dtype, drawn: tuple[int, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    batch, heads, group, q_len, kv_len, dim, value_dim = drawn
    query = torch.randn(batch, heads * group, q_len, dim).to(dtype)
    (key, key_scale), (value, value_scale) = (
        rounded(torch.randn(batch, heads, kv_len, width)) for width in (dim, value_dim)
    )
    keys, values = (
        x.double() * s.double()[..., None] for x, s in ((key, key_scale), (value, value_scale))
    )
    exact = defined(query, keys, values, torch.float64)
    with _native.use_isa(isa):
        found = attend(query, key, value, (key_scale, value_scale))
    plain = defined(query, keys, values, torch.float32).to(dtype)
    assert_within_budget(found, exact=exact, plain=plain, label=isa)


@on_sets
@on_dtypes
@settings(max_examples=25)
@given(sizes(), st.booleans(), st.integers(0, 99))
def test_pages_give_the_bits_of_keys_in_one_piece(
    isa: str, dtype: torch.dtype, drawn: tuple[int, ...], scaled: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    batch, heads, group, q_len, kv_len, dim, value_dim = drawn
    query = torch.randn(batch, heads * group, q_len, dim).to(dtype)
    key, value = (torch.randn(batch, heads, kv_len, width) for width in (dim, value_dim))
    whole: list[Tensor] = [key.to(dtype), value.to(dtype)]
    if scaled:
        (key8, key_scale), (value8, value_scale) = rounded(key), rounded(value)
        whole = [key8, value8, key_scale, value_scale]
    count = -(-kv_len // PAGE)
    table = torch.randperm(batch * count + 2)[: batch * count].view(batch, count).int()
    paged = [torch.full((batch * count + 2, heads, PAGE, *x.shape[3:]), 77).to(x) for x in whole]
    for x, pool in zip(whole, paged, strict=True):
        for row in range(batch):
            for page in range(count):
                part = x[row, :, page * PAGE : (page + 1) * PAGE]
                pool[table[row, page], :, : part.shape[1]] = part
    with _native.use_isa(isa):
        found, wanted = (
            attend(query, *(x[0], x[1]), tuple(x[2:]) or None, pages, kv_len)  # type: ignore[arg-type]
            for x, pages in ((paged, table), (whole, None))
        )
    assert_same_bits(found, wanted)


@on_sets
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_not_finite_is_seen(isa: str, dtype: torch.dtype) -> None:
    query = torch.randn(1, 2, 3, 64).to(dtype)
    (key, key_scale), (value, value_scale) = (rounded(torch.randn(1, 1, 200, 64)) for _ in "kv")
    broken = query.clone()
    broken[0, 1, 2, 5] = torch.nan
    with _native.use_isa(isa):
        found = attend(broken, key, value, (key_scale, value_scale))
        wanted = attend(query, key, value, (key_scale, value_scale))
        assert found[0, 1, 2].isnan().all()
        found[0, 1, 2] = wanted[0, 1, 2]
        assert_same_bits(found, wanted)
        value_scale[0, 0, 7] = torch.nan
        assert attend(query, key, value, (key_scale, value_scale)).isnan().all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"pages": torch.zeros(1, 1, dtype=torch.int64)}, "pages must be"),
        ({"pages": torch.full((1, 2), 5, dtype=torch.int32)}, "no such page"),
        ({"kv_len": 201}, "hold kv_len tokens"),
        ({"scales": (torch.ones(1, 1, 200), torch.ones(1, 1, 199))}, "one for each row"),
        ({"query": torch.ones(1, 2, 17, 64)}, "few queries at a time"),
        ({"value": torch.ones(1, 1, 199, 64)}, "do not fit together"),
    ],
)
def test_wrong_memory_is_refused(change: dict[str, object], text: str) -> None:
    given_tensors: dict[str, object] = {
        "query": torch.ones(1, 2, 3, 64),
        "key": torch.ones(1, 1, 256 if "pages" in change else 200, 64),
        "value": torch.ones(1, 1, 256 if "pages" in change else 200, 64),
    }
    if "scales" in change:
        given_tensors |= {
            name: torch.ones(1, 1, 200, 64).to(torch.int8) for name in ("key", "value")
        }
    with pytest.raises(ValueError, match=text):
        attend(**{**given_tensors, **change})  # type: ignore[arg-type]


@on_sets
@pytest.mark.parametrize("dim", [1024, 1025, 2048, 5003])
def test_products_of_wide_rows_fit(isa: str, dim: int) -> None:
    query = torch.full((1, 1, 1, dim), 2.0**-5, dtype=torch.bfloat16)
    signs = torch.tensor([1, -1, 1, -1], dtype=torch.int8)
    key = (127 * signs)[None, None, :, None].repeat(1, 1, 1, dim)
    value = torch.randint(-127, 128, (1, 1, 4, 9), dtype=torch.int8)
    scales = torch.tensor([[[1.0, 1.0, 0.5, 0.9]]]) / 127, torch.full((1, 1, 4), 1 / 127)
    wide_key, wide_value = key * scales[0].unsqueeze(-1), value * scales[1].unsqueeze(-1)
    with _native.use_isa(isa):
        found = attend(query, key, value, scales)
    exact, plain = (
        defined(query, wide_key, wide_value, dtype) for dtype in (torch.float64, torch.bfloat16)
    )
    assert_within_budget(found, exact=exact, plain=plain, label=isa)

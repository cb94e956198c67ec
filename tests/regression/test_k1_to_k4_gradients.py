"""Kinds K1 to K4 backwards: closed rows, masked numbers, what masks mean, which corner."""

import pytest
import torch

import headwise as hw
from headwise.patterns import Pattern
from tests.support.budget import assert_same_bits
from tests.support.paths import Path, on_all_once, on_exact_once
from tests.support.settings import Setting
from tests.support.shapes import Inputs, Sizes
from tests.support.whole_calls import judged_whole, simple

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ODD = (float("nan"), float("inf"), float("-inf"), 3e4)
on_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SQUARE = Sizes(2, 2, 2, 60, 60, 16, 16)
CLOSED = torch.tensor([2, 50])


@on_exact_once
@on_dtypes
@pytest.mark.parametrize("spelling", ["bool", "-inf"])
def test_b03_closed_rows(path: Path, dtype: torch.dtype, spelling: str) -> None:
    shut = torch.zeros(60, 60).index_fill(0, CLOSED, float("-inf"))
    mask = {"pattern": hw.Dense(shut == 0)} if spelling == "bool" else {"bias": shut}
    found = judged_whole(path, simple(SQUARE, dtype=dtype, **mask))
    assert (found.output[:, :, CLOSED] == 0).all()
    assert (found.d_query[:, :, CLOSED] == 0).all()
    if found.d_bias is not None:
        assert (found.d_bias[CLOSED] == 0).all()


@on_exact_once
def test_b05_left_padding_and_causal(path: Path) -> None:
    real = torch.arange(60) >= torch.tensor([[0], [23]])
    call = simple(SQUARE, pattern=hw.Causal() & hw.KeyMask(real))
    found = judged_whole(path, call)
    assert (found.d_query[1, :, :23] == 0).all()
    assert (found.d_key[1, :, :23] == 0).all()
    assert (found.d_value[1, :, :23] == 0).all()
    part = slice(23, 60)
    alone = simple(
        SQUARE._replace(batch=1, q_len=37, kv_len=37),
        pattern=hw.Causal(),
        given=Inputs(*(t[1:, :, part] for t in call.given)),
        d_output=call.d_output[1:, :, part],
    )
    wanted = judged_whole(path, alone)
    for name in ("output", "d_query", "d_key", "d_value"):
        torch.testing.assert_close(getattr(found, name)[1:, :, part], getattr(wanted, name))


@on_exact_once
def test_b07_band_and_length(path: Path) -> None:
    found = judged_whole(path, simple(SQUARE, pattern=hw.Window(2, 2) & hw.Lengths(43, 43)))
    for gradient in (found.d_query, found.d_key, found.d_value):
        assert (gradient[:, :, 43:] == 0).all()


@on_exact_once
def test_b09_no_gradient_from_the_lse_of_closed_rows(path: Path) -> None:
    visible = (torch.arange(140) >= 5)[:, None] & (torch.arange(140) < 100)
    sizes = Sizes(1, 2, 1, 140, 140, 16, 16)
    d_lse = torch.randn(1, 2, 140)
    d_lse[:, :, :5] = float("nan")
    call = simple(sizes, pattern=hw.Dense(visible), d_lse=d_lse)
    with path.taken() as backend:
        found = call.run(backend)
    assert (found.d_query[:, :, :5] == 0).all()
    clean = simple(sizes, pattern=hw.Dense(visible), d_lse=d_lse.nan_to_num(0.0))
    wanted = judged_whole(path, clean)
    for name in ("d_query", "d_key", "d_value"):
        assert_same_bits(getattr(found, name), getattr(wanted, name), name)


@on_exact_once
@on_dtypes
@pytest.mark.parametrize("odd", ODD)
def test_b10_nan_behind_a_mask(path: Path, dtype: torch.dtype, odd: float) -> None:
    hidden = torch.arange(60) % 7 == 3
    pattern = hw.Causal() & hw.KeyMask(~hidden)
    clean = simple(SQUARE, dtype=dtype, pattern=pattern)
    query, key, value = clean.given
    spoiled = Inputs(query, *(t.index_fill(2, hidden.nonzero()[:, 0], odd) for t in (key, value)))
    with path.taken() as backend:
        wanted = clean.run(backend)
        found = simple(SQUARE, dtype=dtype, pattern=pattern, given=spoiled).run(backend)
    for name, one, two in zip(found._fields, found, wanted, strict=True):
        if one is not None:
            assert two is not None
            assert_same_bits(one, two, name)


@on_all_once
@pytest.mark.parametrize(
    "mask", [(5,), (1, 5), (5, 1), (1, 1), (2, 1, 1, 5), (2, 1, 5, 1), (1, 3, 1, 5), ()], ids=str
)
def test_b20_biases_of_few_axes(path: Path, mask: tuple[int, ...]) -> None:
    found = judged_whole(path, simple(Sizes(2, 3, 1, 5, 5, 8, 8), bias=torch.randn(mask)))
    assert found.d_bias is not None
    assert found.d_bias.shape == mask


@on_exact_once
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_b22_a_float32_bias_keeps_its_precision(path: Path, dtype: torch.dtype) -> None:
    """The bias differs from key to key by less than a step of the dtype."""
    bias = 64 + torch.arange(60) * 2.0**-9
    found = judged_whole(path, simple(SQUARE, dtype=dtype, bias=bias))
    assert found.d_bias is not None
    assert found.d_bias.dtype == torch.float32


@on_all_once
@pytest.mark.parametrize(
    ("pattern", "q_len", "kv_len"),
    [
        (hw.Causal(), 1, 5),
        (hw.Causal(), 3, 5),
        (hw.Causal(), 49, 131),
        (hw.Causal(), 7, 4),
        (None, 3, 5),
    ],
    ids=repr,
)
def test_b26_b28_b30_the_corner(
    path: Path, pattern: Pattern | None, q_len: int, kv_len: int
) -> None:
    judged_whole(path, simple(Sizes(7, 2, 1, q_len, kv_len, 16, 16), pattern=pattern))


@on_exact_once
def test_b26_steps_have_the_gradients_of_the_whole(path: Path) -> None:
    """Rows of a causal pass, each as a step of its own with the keys before it."""
    call = simple(Sizes(1, 2, 2, 9, 9, 16, 16), pattern=hw.Causal())
    whole = judged_whole(path, call)
    query, key, value = call.given
    d_key = torch.zeros_like(key)
    for row in range(9):
        step = simple(
            Sizes(1, 2, 2, 1, row + 1, 16, 16),
            pattern=hw.Causal(),
            given=Inputs(query[:, :, row : row + 1], key[:, :, : row + 1], value[:, :, : row + 1]),
            d_output=call.d_output[:, :, row : row + 1],
        )
        assert step.setting == Setting(1, 4, 1, row + 1)
        with path.taken() as backend:
            found = step.run(backend)
        torch.testing.assert_close(found.d_query[:, :, 0], whole.d_query[:, :, row])
        d_key[:, :, : row + 1] += found.d_key
    torch.testing.assert_close(d_key, whole.d_key)

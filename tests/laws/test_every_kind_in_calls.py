"""Laws of attention under every kind of pattern: parity, masked numbers, samples and heads."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headwise as hw
from headwise.patterns import Pattern, PerHead
from tests.support.budget import assert_same_bits
from tests.support.paths import ISAS, ONCE, Path
from tests.support.settings import Setting
from tests.support.shapes import Inputs, Sizes, inputs
from tests.support.strategies import EVERY_KIND, kind_of, leaves, settings_for
from tests.support.whole_calls import Derived, WholeCall, assert_derived, simple

on_every_kind = pytest.mark.parametrize("kind", EVERY_KIND)
# Each example runs forwards and backwards on every instruction set.
few = settings(max_examples=max(2, settings().max_examples // 8))
ODD = (float("nan"), float("inf"), float("-inf"), 1e30)
LENGTHS = st.sampled_from([1, 3, 48, 49, 97, 129])
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@st.composite
def calls_of(
    draw: st.DrawFn, kind: str, dtype: torch.dtype = torch.float32, group: int = 2
) -> WholeCall:
    """Draw a call with a pattern of one kind, and gradients of both results."""
    drawn = draw(settings_for(kind, LENGTHS))
    setting = replace(drawn, heads=drawn.heads * group)
    sizes = Sizes(setting.batch, drawn.heads, group, setting.q_len, setting.kv_len, 8, 8)
    d_lse = torch.randn(sizes.batch, sizes.heads, sizes.q_len)
    pattern = draw(kind_of(kind, setting))
    call = simple(sizes, dtype=dtype, pattern=pattern, d_lse=d_lse)
    return replace(call, setting=setting)


def seen_by(call: WholeCall) -> torch.Tensor:
    visible = call.visible()
    assert visible is not None
    return visible.expand(call.shape)


def runs(call: WholeCall, paths: list[Path]) -> Iterator[tuple[Path, Derived]]:
    for path in paths:
        with path.taken() as backend:
            yield path, call.run(backend)


@on_every_kind
@few
@given(data=st.data())
def test_results_and_gradients_are_those_of_the_mask(kind: str, data: st.DataObject) -> None:
    call = data.draw(calls_of(kind, data.draw(st.sampled_from(DTYPES))))
    exact = call.spelled(torch.float64)
    plain = call.plain(exact)
    for path, found in runs(call, [Path("reference"), *ONCE]):
        assert_derived(found, exact=exact, plain=plain, label=str(path))


@on_every_kind
@few
@given(data=st.data())
def test_a_key_stays_out_of_the_rows_that_do_not_see_it(kind: str, data: st.DataObject) -> None:
    """P-perturb: NaN, infinities and huge numbers in a key and its value, bit for bit."""
    call = data.draw(calls_of(kind))
    where = data.draw(st.integers(0, call.setting.kv_len - 1))
    odd = data.draw(st.sampled_from(ODD))
    untouched = ~seen_by(call)[..., where]
    query, key, value = call.given
    spoiled = Inputs(query, key.clone(), value.clone())
    spoiled.key[:, :, where] = odd
    spoiled.value[:, :, where] = odd
    paths = [Path("reference"), *ONCE]
    pairs = zip(runs(call, paths), runs(replace(call, given=spoiled), paths), strict=True)
    for (path, before), (_, after) in pairs:
        for name in ("output", "lse", "d_query"):
            one, two = (getattr(side, name)[untouched] for side in (after, before))
            assert_same_bits(one, two, f"{path} {name} of {odd} at {where}")


@on_every_kind
@few
@given(data=st.data())
def test_keys_that_none_sees_stay_out_of_everything(kind: str, data: st.DataObject) -> None:
    call = data.draw(calls_of(kind))
    odd = data.draw(st.sampled_from(ODD))
    query, key, value = call.given
    by_group = seen_by(call).any(2).view(*key.shape[:2], -1, key.shape[2])
    hidden = ~by_group.any(2).unsqueeze(-1)
    spoiled = Inputs(query, *(tensor.masked_fill(hidden, odd) for tensor in (key, value)))
    paths = [Path("reference"), *ONCE]
    pairs = zip(runs(call, paths), runs(replace(call, given=spoiled), paths), strict=True)
    for (path, before), (_, after) in pairs:
        for name in ("output", "lse", "d_query", "d_key", "d_value"):
            assert_same_bits(getattr(after, name), getattr(before, name), f"{path} {name} {odd}")
        for gradient in (after.d_key, after.d_value):
            assert (gradient[hidden.squeeze(-1)] == 0).all()


@on_every_kind
@few
@given(data=st.data())
def test_each_sample_alone_has_the_same_bits(kind: str, data: st.DataObject) -> None:
    """So any order of samples gives the same outputs in that order."""
    call = data.draw(calls_of(kind))
    pattern, setting = call.pattern, call.setting
    assert pattern is not None
    isa = data.draw(st.sampled_from(ISAS))
    with Path("native", isa, 1).taken() as backend:
        together = hw.attend(*call.given, pattern, backend=backend, **setting.offsets)
        for b in range(setting.batch):
            own = PerHead([pattern.sample(b, head) for head in range(setting.heads)])
            one = Inputs(*(tensor[b : b + 1] for tensor in call.given))
            query, key = setting.positions(b)
            alone = hw.attend(*one, own, q_offset=query, kv_offset=key, backend=backend)
            assert_same_bits(alone, together[b : b + 1], f"{isa} sample {b}")


@given(data=st.data())
def test_heads_in_another_order(data: st.DataObject) -> None:
    drawn = Setting(2, 3, data.draw(LENGTHS), data.draw(LENGTHS), 0)
    alike = leaves(drawn).filter(lambda pattern: pattern.num_heads in (None, 1))
    parts: list[Pattern] = [data.draw(alike) for _ in range(3)]
    given_ = inputs(Sizes(2, 3, 1, drawn.q_len, drawn.kv_len, 8, 8))
    order = data.draw(st.permutations(range(3)))
    turned = Inputs(*(tensor[:, order] for tensor in given_))
    with Path("native", data.draw(st.sampled_from(ISAS)), 1).taken() as backend:
        wanted = hw.attend(*given_, PerHead(parts), q_offset=0, backend=backend)
        found = hw.attend(*turned, PerHead([parts[n] for n in order]), q_offset=0, backend=backend)
    assert_same_bits(found, wanted[:, order])

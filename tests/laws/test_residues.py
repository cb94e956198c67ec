"""Laws of calls that run residue class by residue class: the reference's numbers, at any size."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.ops.softmax import residues
from headwise.patterns import Pattern, Strided, Window
from headwise.patterns.residues import parts
from tests.support.budget import assert_within_budget
from tests.support.settings import Setting
from tests.support.strategies import patterns, settings_of_calls

WITH_STEPS = st.one_of(
    st.builds(Strided, st.integers(2, 5)),
    st.builds(
        Window, st.none() | st.integers(0, 4), st.none() | st.integers(0, 4), st.integers(2, 4)
    ),
)


@pytest.fixture(autouse=True, scope="module")
def _at_any_size() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residues, "_FEWEST_SORTED", 1)
        patch.setattr(residues, "_FEWEST_JOINED", 1)
        patch.setattr(residues, "_SHORTEST_CLASS", 0)
        yield


@st.composite
def sparse(draw: st.DrawFn, setting: Setting) -> Pattern:
    """Draw a pattern with a step somewhere in it."""
    pattern: Pattern = draw(WITH_STEPS)
    for _ in range(draw(st.integers(0, 2))):
        other = draw(patterns(setting))
        joined = (pattern & other, pattern | other, other | pattern, other & ~pattern)
        pattern = draw(st.sampled_from(joined))
    return pattern


def attended(
    pattern: Pattern, setting: Setting, dtype: torch.dtype, backend: str
) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(3)
    tensors = [
        torch.randn(setting.batch, setting.heads, length, 5, generator=source)
        .to(torch.bfloat16)
        .to(dtype)
        .requires_grad_()
        for length in (setting.q_len, setting.kv_len, setting.kv_len)
    ]
    query, key, value = tensors
    found = hw.attend_with_lse(query, key, value, pattern, backend=backend, **setting.offsets)
    closed = found.lse == float("-inf")
    loss = found.output.square().sum() + found.lse.masked_fill(closed, 0.0).sum()
    return (*(t.detach() for t in found), *torch.autograd.grad(loss, tensors))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_outputs_and_gradients_are_those_of_the_reference(
    data: st.DataObject, dtype: torch.dtype
) -> None:
    setting = data.draw(settings_of_calls(st.integers(1, 40)))
    pattern = data.draw(sparse(setting))
    exact = attended(pattern, setting, torch.float64, "reference")
    plain = attended(pattern, setting, dtype, "reference")
    native = attended(pattern, setting, dtype, "native")
    closed = exact[1] == float("-inf")
    assert torch.equal(native[1] == float("-inf"), closed)
    names = ("output", "lse", "d_query", "d_key", "d_value")
    for name, *answers in zip(names, native, plain, exact, strict=True):
        open_ = [a.masked_fill(closed, 0.0) if name == "lse" else a for a in answers]
        assert_within_budget(open_[0], exact=open_[2], plain=open_[1], label=name)


@given(data=st.data())
def test_parts_share_no_pair_and_leave_none_out(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    pattern = data.draw(sparse(setting))
    shape = (setting.batch, setting.heads, setting.q_len, setting.kv_len)
    count = torch.zeros(shape, dtype=torch.int64)
    for part in parts(pattern):
        count += part.dense(setting.q_len, setting.kv_len, **setting.offsets)
    assert torch.equal(
        count, pattern.dense(setting.q_len, setting.kv_len, **setting.offsets).expand(shape).long()
    )


def test_strides_are_split() -> None:
    assert [part.step for part in parts(Strided(7) & hw.Causal())] == [1, 7]
    assert [part.step for part in parts(Window(3, 3, 4) | hw.Prefix(5))] == [4, 1]
    assert parts(hw.Causal() & Window(3, 0)) == (hw.Causal() & Window(3, 0),)

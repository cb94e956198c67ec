"""Laws of calls that run residue class by residue class: the reference's numbers, at any size."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.patterns import Pattern, Strided, Window, residues
from headwise.patterns.residues import parts
from tests.support.budget import assert_within_budget, largest_error
from tests.support.settings import Setting
from tests.support.strategies import patterns, settings_of_calls


@pytest.fixture(autouse=True, scope="module")
def _whatever_the_holes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_HOLES", "_HOLES_JOINED"):
            patch.setattr(residues, name, 1)
        parts.cache_clear()
        yield
    parts.cache_clear()


WITH_STEPS = st.one_of(
    st.builds(Strided, st.integers(2, 5)),
    st.builds(
        Window, st.none() | st.integers(0, 4), st.none() | st.integers(0, 4), st.integers(2, 4)
    ),
)


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
    # A bias of zeros keeps the native call in one piece.
    bias = torch.zeros(1, 1, 1, 1) if backend == "whole" else None
    found = hw.attend_with_lse(
        *(query, key, value, pattern),
        bias=bias,
        backend="native" if backend == "whole" else backend,
        **setting.offsets,
    )
    closed = found.lse == float("-inf")
    loss = found.output.square().sum() + found.lse.masked_fill(closed, 0.0).sum()
    return (*(t.detach() for t in found), *torch.autograd.grad(loss, tensors))


@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_outputs_and_gradients_are_those_of_the_reference(
    data: st.DataObject, dtype: torch.dtype
) -> None:
    setting = data.draw(settings_of_calls(st.integers(1, 60)))
    pattern = data.draw(sparse(setting))
    exact = attended(pattern, setting, torch.float64, "reference")
    plain, whole = (attended(pattern, setting, dtype, way) for way in ("reference", "whole"))
    native = attended(pattern, setting, dtype, "native")
    closed = exact[1] == float("-inf")
    assert torch.equal(native[1] == float("-inf"), closed)
    names = ("output", "lse", "d_query", "d_key", "d_value")
    for name, *answers in zip(names, native, plain, whole, exact, strict=True):
        found, *usual, right = (
            answer.masked_fill(closed, 0.0) if name == "lse" else answer for answer in answers
        )
        worst = max(usual, key=lambda numbers: largest_error(numbers, right))
        assert_within_budget(found, exact=right, plain=worst, label=name)


@given(data=st.data())
def test_parts_share_no_pair_and_leave_none_out(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    pattern = data.draw(sparse(setting))
    shape = (setting.batch, setting.heads, setting.q_len, setting.kv_len)
    count = torch.zeros(shape, dtype=torch.int64)
    for part in parts(pattern) or (pattern,):
        count += part.dense(setting.q_len, setting.kv_len, **setting.offsets)
    assert torch.equal(
        count, pattern.dense(setting.q_len, setting.kv_len, **setting.offsets).expand(shape).long()
    )


def test_strides_are_split() -> None:
    assert [part.step for part in parts(Strided(7) & hw.Causal())] == [1, 7]
    assert [part.step for part in parts(Window(3, 3, 4) | hw.Prefix(5))] == [4, 1]
    assert parts(hw.Causal() & Window(3, 0)) == ()

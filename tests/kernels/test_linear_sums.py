"""The kernel of linear attention: every instruction set, dtype, stride, direction, thread count."""

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import headwise as hw
from headwise import _native
from headwise.ops.linear import chunked, native
from headwise.ops.linear.launch import Found, Given, launch
from headwise.ops.linear.scales import causal_offset
from headwise.ops.linear.state import LinearState, Sums
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.linear import EVERY_FORM, WithGain
from tests.support.linear_sums import Problem, drawn, problems
from tests.support.paths import ISAS

on_sets = pytest.mark.parametrize("isa", ISAS)


def results(found: Sums) -> list[Tensor]:
    return [found.values, found.normaliser, found.state.sums, found.state.normaliser]


def _added(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack([part.sum() for part in parts]).sum()


@on_sets
@settings(max_examples=40)
@given(problem=problems())
def test_values_states_and_gradients_are_those_of_the_formula(isa: str, problem: Problem) -> None:
    leaves = drawn(problem)
    torch.manual_seed(problem.seed)
    found, weights = [], None
    with _native.use_isa(isa):
        for form, dtype, number in (
            (native, problem.dtype, torch.float32),
            (chunked, torch.float32, torch.float32),
            (chunked, torch.float64, torch.float64),
        ):
            copies = leaves.to(dtype, number)
            sums = results(copies.run(form.linear_sums, causal=problem.causal))
            weights = weights or [torch.randn(part.shape) for part in sums]
            loss = _added(a * b.to(number) for a, b in zip(sums, weights, strict=True))
            gradients = torch.autograd.grad(loss, copies.learned)
            found.append([*sums, *gradients])
    names = ["values", "normaliser", "sums", "normaliser after", "d_query", "d_key", "d_value"]
    names += ["d_decay"] * problem.decays + ["d_sums", "d_normaliser"] * problem.has_state
    counted = _counted(leaves.query, found[2][4])
    for name, actual, plain, exact in zip(names, *found, strict=True):
        if name == "d_decay":
            assert (actual - exact).abs().max() <= counted
            continue
        assert_within_budget(actual, exact=exact, plain=plain.to(actual.dtype), label=name)


def _counted(query: Tensor, gradient: Tensor) -> float:
    """Return how far the gradient of a decay may be off.

    It counts the two sides of every pair by themselves, each as often as its place says, up to 256
    times, so what cancels leaves roundings of the larger numbers behind.
    """
    sides = (query.double() * gradient.double()).sum(-1).abs().sum().item()
    places = min(query.shape[2], 256)
    return 2 * torch.finfo(torch.float32).eps * places * max(1.0, sides)


@on_sets
@settings(max_examples=15)
@given(problem=problems(longest=2500))
def test_threads_change_no_bit(isa: str, problem: Problem) -> None:
    leaves = drawn(problem._replace(batch=1, kv_heads=1))
    offset = None
    if problem.causal and leaves.log_gain is not None:
        offset = causal_offset(leaves.log_gain, leaves.log_decay, leaves.state)
        offset = offset.repeat_interleave(problem.group, 1)
    state = leaves.state or (None, None, None)
    call = Given(*leaves[:4], offset, leaves.log_decay, *state)
    before = torch.get_num_threads()
    with _native.use_isa(isa), torch.no_grad():
        for backwards in (False, True) if leaves.log_gain is None else (False,):
            one, several = (_on(threads, call, problem.causal, backwards) for threads in (1, 3))
            for a, b in zip(several, one, strict=True):
                assert_same_bits(a, b)
    assert torch.get_num_threads() == before


def _on(threads: int, call: Given, causal: bool, backwards: bool) -> Found:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return launch(call, causal, backwards)
    finally:
        torch.set_num_threads(before)


@on_sets
@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_later_tokens_and_other_samples_change_no_bit(isa: str, odd: float) -> None:
    torch.manual_seed(0)
    query, key = torch.rand(2, 2, 131, 5), torch.rand(2, 1, 131, 5)
    value, gain = torch.randn(2, 1, 131, 7), torch.randn(2, 1, 131)
    others = [tensor.clone() for tensor in (query, key, value, gain)]
    for tensor in others:
        tensor[1] = odd
        tensor[0, :, 70:] = odd
    with _native.use_isa(isa):
        found = [_first(*tensors) for tensors in ((query, key, value, gain), others)]
    for a, b in zip(*found, strict=True):
        assert_same_bits(b, a)


def _first(query: Tensor, key: Tensor, value: Tensor, gain: Tensor) -> list[Tensor]:
    sums = native.linear_sums(
        query,
        key,
        value,
        log_gain=gain,
        offset=causal_offset(gain, None, None),
        log_decay=None,
        state=None,
        causal=True,
    )
    return [sums.values[0, :, :70], sums.normaliser[0, :, :70]]


def test_second_derivatives_are_right() -> None:
    leaves = drawn(Problem(1, 2, 2, 9, 9, 3, 2, torch.float32, True, "near", True, True, 0))
    second = []
    for form, dtype in ((native, torch.float32), (chunked, torch.float64)):
        copies = leaves.to(dtype, dtype)
        sums = copies.run(form.linear_sums, causal=True)
        torch.manual_seed(1)
        loss = _added(part * torch.randn(part.shape).to(dtype) for part in results(sums))
        first = torch.autograd.grad(loss.square(), copies.learned, create_graph=True)
        again = _added(part.square() for part in first)
        second.append(torch.autograd.grad(again, copies.learned))
    for actual, exact in zip(*second, strict=True):
        assert_within_budget(
            actual / exact.abs().max(),
            exact=exact / exact.abs().max(),
            plain=(exact.float() / exact.abs().max()).float() * (1 + 1e-6),
            label="second",
        )


def test_states_of_no_tokens_are_those_before() -> None:
    state = LinearState(torch.randn(1, 1, 3, 2), torch.rand(1, 1, 3), torch.zeros(1, 1))
    nothing = torch.empty(1, 1, 0, 3)
    found = native.linear_sums(
        nothing,
        nothing,
        nothing[..., :2],
        log_gain=None,
        offset=None,
        log_decay=None,
        state=state,
        causal=True,
    )
    assert_same_bits(found.state.sums, state.sums)
    assert found.values.shape == (1, 1, 0, 2)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("decay", [None, 0.5])
def test_no_heads_have_a_gradient(causal: bool, decay: float | None) -> None:
    leaves = [torch.randn(2, 0, 3, 4, requires_grad=True) for _ in range(3)]
    rates = torch.ones(0, requires_grad=True) if causal and decay else None
    found = hw.linear_attend(
        *leaves, feature_map=WithGain(), causal=causal, decay=rates, backend="native"
    )
    (found.output.sum() + found.state.sums.sum()).backward()  # type: ignore[no-untyped-call]
    assert all(x.grad is not None and x.grad.shape == x.shape for x in leaves)


@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize("causal", [True, False])
def test_an_output_may_be_changed_in_place(form: str, causal: bool) -> None:
    def gradients(changed: bool) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        leaves = [torch.randn(1, 2, 70, 4, requires_grad=True) for _ in range(3)]
        output = hw.linear_attend(
            *leaves, feature_map="elu", causal=causal, normalize=False, backend=form
        ).output
        if changed:
            output += 1
        return torch.autograd.grad(output.sum(), leaves)

    for a, b in zip(gradients(True), gradients(False), strict=True):
        assert_same_bits(a, b)

"""Derivatives of derivatives of patched calls, and what else kernels do not give: batches, both."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian
from torch.func import grad, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import headwise as hw
from headwise.errors import BackendRefused
from headwise.ops import tally
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.sdpa_calls import Asked, leaves, tensors

CASES = {
    "plain": (Asked((2, 3), (2, 3), (2, 3)), "none"),
    "causal": (Asked((2, 3), (2, 3), (2, 3), None, {"is_causal": True}), "none"),
    "three dimensions, closed row": (Asked((3,), (3,), (3,), (5, 7)), "bool"),
    "a mask that learns": (Asked((2, 3), (2, 3), (2, 3), (3, 5, 7)), "f"),
    "grouped": (Asked((2, 6), (2, 3), (2, 3), (5, 7), {"enable_gqa": True}), "bool"),
}


def attend(query: Tensor, key: Tensor, **more: Any) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, key, **more)


def derived(given: list[Any], more: dict[str, Any]) -> list[Tensor]:
    """Return the gradients of a call and the gradients of their squares."""
    wanted = [tensor for tensor in given if tensor.requires_grad]
    output = functional.scaled_dot_product_attention(*given, **more)
    first = torch.autograd.grad(output.square().sum(), wanted, create_graph=True)
    loss = torch.stack([part.square().sum() for part in first]).sum()
    return [*first, *torch.autograd.grad(loss, wanted)]


@pytest.mark.parametrize("case", CASES)
def test_second_derivatives(case: str) -> None:
    asked, kind = CASES[case]
    given = tensors(asked, torch.float32, kind)
    with tally() as counted, hw.patch.sdpa():
        found = derived(given, asked.more)
    assert counted["native"] == 1
    with sdpa_kernel(SDPBackend.MATH):
        plain = derived(given, asked.more)
        exact = derived(leaves(given, torch.float64), asked.more)
    for place, (ours, theirs, wanted) in enumerate(zip(found, plain, exact, strict=True)):
        assert_within_budget(ours, exact=wanted, plain=theirs, label=f"{case}: {place}")


def test_a_tensor_that_is_given_three_times() -> None:
    query = torch.randn(3, 5, 8, requires_grad=True)

    def penalty() -> Tensor:
        output = functional.scaled_dot_product_attention(query, query, query)
        (first,) = torch.autograd.grad(output.sum(), query, create_graph=True)
        return torch.autograd.grad(first.square().sum(), query)[0]

    wanted = penalty()
    with hw.patch.sdpa():
        torch.testing.assert_close(penalty(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_dropout_is_the_same_again(share: float) -> None:
    query, key = torch.randn(2, 3, 5, 8, requires_grad=True), torch.randn(2, 3, 7, 8)
    with hw.patch.sdpa():
        output = attend(query, key, dropout_p=share).square().sum()
    before = torch.get_rng_state()
    (kernels,) = torch.autograd.grad(output, query, retain_graph=True)
    (plain,) = torch.autograd.grad(output, query, create_graph=True)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(plain, kernels)
    (second,) = torch.autograd.grad(plain.square().sum(), query)
    assert second.any() == (share < 1.0)


def test_first_derivatives_are_the_kernels() -> None:
    query, key = torch.randn(2, 3, 5, 8, requires_grad=True), torch.randn(2, 3, 7, 8)
    with tally() as counted, hw.patch.sdpa():
        (found,) = torch.autograd.grad(attend(query, key).sum(), query)
        (wanted,) = torch.autograd.grad(hw.attend(query, key, key).sum(), query)
    assert counted == {"native": 2}
    assert_same_bits(found, wanted)


def test_gradients_in_batches() -> None:
    query, key = torch.randn(3, 5, 8), torch.randn(3, 7, 8)
    wanted = jacobian(lambda q: attend(q, key), query)  # type: ignore[no-untyped-call]
    with hw.patch.sdpa():
        found = jacobian(lambda q: attend(q, key), query, vectorize=True)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, wanted)


def test_autocast_around_the_derivatives() -> None:
    query, key = torch.randn(2, 3, 5, 8, requires_grad=True), torch.randn(2, 3, 7, 8)
    with hw.patch.sdpa():
        output = attend(query, key).square().sum()
        (wanted,) = torch.autograd.grad(output, query, retain_graph=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (found,) = torch.autograd.grad(output, query, create_graph=True)
    torch.testing.assert_close(found, wanted)


def test_transforms_that_derive_twice_are_torchs() -> None:
    query, key = torch.randn(2, 3, 5, 8), torch.randn(3, 7, 8)
    said = []

    def loss(query: Tensor) -> Tensor:
        said.append(hw.patch.explain(query, key, key).refusals)
        return attend(query, key).square().sum()

    twice = vmap(grad(lambda q: grad(loss)(q).square().sum()))
    wanted = twice(query)
    with hw.patch.sdpa():
        torch.testing.assert_close(twice(query), wanted, rtol=0, atol=0)
        vmap(grad(loss))(query)
    assert said == [("torch.func derives the call twice",)] * 2 + [()]


def test_a_transform_that_autograd_derives_is_refused() -> None:
    query, key = torch.randn(3, 5, 8, requires_grad=True), torch.randn(3, 7, 8)
    with hw.patch.sdpa():
        first = grad(lambda q: attend(q, key).square().sum())(query)
        with pytest.raises(BackendRefused, match="no second derivatives"):
            torch.autograd.grad(first.sum(), query)


def test_a_result_that_is_changed_in_place() -> None:
    """As with torch's FLASH: it may be, but its gradient is gone then."""
    query = torch.randn(2, 5, 3, 8, requires_grad=True)
    heads = query.transpose(1, 2)
    for patched in (False, True):
        with hw.patch.sdpa(patched):
            output = attend(heads, heads).mul_(2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(output.sum(), query)

"""Gradients of every path that has them, against float64 autograd of the oracle."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.calls import Call, calls
from tests.support.oracle import attention
from tests.support.shapes import Inputs, Sizes, inputs

BACKENDS = ("native", "auto", "reference", "sdpa")
ODD = (float("nan"), float("inf"), 1e30)
on_backends = pytest.mark.parametrize("backend", BACKENDS)
SMALL = Sizes(2, 1, 2, 5, 7, 3, 5)


def leaves(given_: Inputs, dtype: torch.dtype | None = None) -> Inputs:
    return Inputs(*(t.detach().to(dtype or t.dtype).clone().requires_grad_() for t in given_))


def weighed(output: Tensor) -> Tensor:
    """Reduce with weights of no symmetry, the same in every dtype."""
    return (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum()


def oracle_gradients(call: Call, dtype: torch.dtype) -> tuple[Tensor, ...]:
    free = leaves(call.given, dtype)
    output = attention(*free, call.visible(), bias=call.bias, scale=call.scale, dtype=dtype).output
    return torch.autograd.grad(weighed(output), free)


@on_backends
@given(call=calls(small=True))
def test_gradients(backend: str, call: Call) -> None:
    free = leaves(call.given)
    if hw.explain(*free, call.pattern, backend=backend, **call.keywords).backend is None:
        return
    output = hw.attend(*free, call.pattern, backend=backend, **call.keywords)
    found = torch.autograd.grad(weighed(output), free)
    wanted = oracle_gradients(call, torch.float64), oracle_gradients(call, torch.float32)
    for name, mine, exact, plain in zip(("query", "key", "value"), found, *wanted, strict=True):
        assert_within_budget(mine, exact=exact, plain=plain, label=f"{backend} d{name}")


@given(call=calls(small=True))
def test_gradients_of_the_log_sum_exp(call: Call) -> None:
    def run(dtype: torch.dtype | None) -> tuple[Tensor, ...]:
        free = leaves(call.given, dtype)
        if dtype is None:
            output, lse = hw.attend_with_lse(*free, call.pattern, **call.keywords)
        else:
            output, _, lse = attention(
                *free, call.visible(), bias=call.bias, scale=call.scale, dtype=dtype
            )
        open_rows = lse.masked_fill(lse == float("-inf"), 0.0)
        return torch.autograd.grad(weighed(output) + weighed(open_rows), free)

    for mine, exact, plain in zip(run(None), run(torch.float64), run(torch.float32), strict=True):
        assert_within_budget(mine, exact=exact, plain=plain, label="with lse")


@given(call=calls(small=True), which=st.sampled_from(["plain", "masked"]))
def test_gradcheck(call: Call, which: str) -> None:
    free = leaves(call.given, torch.float64)
    pattern = call.pattern if which == "masked" else None

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keywords = {**call.keywords, "bias": None if call.bias is None else call.bias.double()}
        return hw.attend(query, key, value, pattern, backend="reference", **keywords)

    assert torch.autograd.gradcheck(run, tuple(free), fast_mode=True)


@on_backends
@pytest.mark.parametrize(
    "shape", [(5, 7), (1, 7), (5, 1), (2, 1, 1, 7), (1, 2, 1, 1), (2, 2, 5, 7), ()], ids=str
)
@pytest.mark.parametrize("closed", [False, True], ids=["finite", "with -inf"])
def test_gradient_of_a_bias_alone(backend: str, shape: tuple[int, ...], closed: bool) -> None:
    """B70: only the bias wants a gradient, on every axis it broadcasts along."""
    given_ = inputs(SMALL)
    bias = torch.randn(shape)
    if closed and bias.ndim:
        bias.view(-1)[::2] = float("-inf")
    free = bias.clone().requires_grad_()
    found = torch.autograd.grad(weighed(hw.attend(*given_, bias=free, backend=backend)), free)[0]
    wanted = []
    for dtype in (torch.float64, torch.float32):
        twin = bias.to(dtype).requires_grad_()
        output = attention(*given_, bias=twin, dtype=dtype).output
        wanted.append(torch.autograd.grad(weighed(output), twin)[0])
    assert found.shape == bias.shape
    assert (found[bias == float("-inf")] == 0).all()
    assert_within_budget(found, exact=wanted[0], plain=wanted[1], label=f"{backend} dbias")


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("odd", ODD)
def test_masked_numbers_leak_into_no_gradient(backend: str, odd: float) -> None:
    pattern = hw.Causal() & hw.Lengths([3, 0])
    given_ = inputs(Sizes(2, 1, 2, 5, 5, 3, 5))
    spoiled = Inputs(*(t.clone() for t in given_))
    for tensor in spoiled[1:]:
        tensor[0, :, 3:], tensor[1] = odd, odd
    found = []
    for start in (given_, spoiled):
        free = leaves(start)
        output = hw.attend(*free, pattern, backend=backend)
        found.append(torch.autograd.grad(weighed(output), free))
    for clean, odd_one in zip(*found, strict=True):
        torch.testing.assert_close(odd_one, clean)
        assert odd_one.isfinite().all()
    for gradient in found[1]:
        assert (gradient[1] == 0).all()
    assert (found[1][1][0, :, 3:] == 0).all()
    assert (found[1][2][0, :, 3:] == 0).all()


@on_backends
def test_a_closed_row_gives_no_gradient(backend: str) -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    free = leaves(inputs(SMALL))
    output = hw.attend(*free, hw.Dense(mask), backend=backend)
    for gradient in torch.autograd.grad(output[:, :, 2].sum(), free):
        assert (gradient == 0).all()


def test_a_gradient_changes_neither_the_way_nor_the_bits() -> None:
    free = leaves(inputs(SMALL))
    assert hw.explain(*free, hw.Causal()).backend == "native"
    output = hw.attend(*free, hw.Causal())
    with torch.no_grad():
        assert hw.explain(*free, hw.Causal()).backend == "native"
        assert_same_bits(hw.attend(*free, hw.Causal()), output)


@given(call=calls(small=True))
def test_vmap_equals_the_loop(call: Call) -> None:
    """B72: over the batch of three-dimensional inputs, and over queries alone."""
    offsets = call.setting.offsets
    if call.pattern is not None and (call.pattern.batch_size or call.pattern.num_heads):
        return
    if any(isinstance(offset, Tensor) for offset in offsets.values()):
        return

    def one(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return hw.attend(query, key, value, call.pattern, scale=call.scale, **offsets)

    query, key, value = call.given
    looped = torch.stack([one(*parts) for parts in zip(*call.given, strict=True)])
    torch.testing.assert_close(torch.func.vmap(one)(*call.given), looped)
    shared = torch.stack([one(part, key[0], value[0]) for part in query])
    found = torch.func.vmap(one, in_dims=(0, None, None))(query, key[0], value[0])
    torch.testing.assert_close(found, shared)


def test_func_grad_and_vmap_of_grad() -> None:
    given_ = inputs(SMALL, dtype=torch.float64)

    def loss(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (hw.attend(query, key, value, hw.Causal()) ** 2).sum()

    free = leaves(given_)
    wanted = torch.autograd.grad(loss(*free), free)
    for found, right in zip(torch.func.grad(loss, (0, 1, 2))(*given_), wanted, strict=True):
        torch.testing.assert_close(found, right)
    each = torch.func.vmap(torch.func.grad(loss, (0, 1, 2)))(*given_)
    for found, right in zip(each, wanted, strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_forward_mode_is_right_or_refused() -> None:
    given_ = inputs(SMALL, dtype=torch.float64)
    along = inputs(SMALL, seed=1, dtype=torch.float64)

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return hw.attend(query, key, value, hw.Causal())

    tangent = torch.func.jvp(run, tuple(given_), tuple(along))[1]
    step = 1e-6
    ahead = run(*(a + step * b for a, b in zip(given_, along, strict=True)))
    behind = run(*(a - step * b for a, b in zip(given_, along, strict=True)))
    torch.testing.assert_close(tangent, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6)


def test_second_derivatives() -> None:
    given_ = leaves(inputs(Sizes(1, 1, 2, 3, 4, 2, 2)), torch.float64)

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return hw.attend(query, key, value, hw.Causal(), backend="reference")

    assert torch.autograd.gradgradcheck(run, tuple(given_))


def test_gradients_do_not_depend_on_strides() -> None:
    plain = leaves(inputs(SMALL))
    wanted = torch.autograd.grad(weighed(hw.attend(*plain, hw.Causal())), plain)
    free = leaves(Inputs(*(t.mT.contiguous() for t in inputs(SMALL))))
    output = hw.attend(*Inputs(*(t.mT for t in free)), hw.Causal())
    for found, right in zip(torch.autograd.grad(weighed(output), free), wanted, strict=True):
        torch.testing.assert_close(found.mT, right)

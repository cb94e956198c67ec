"""What training loops do around attention: autocast, checkpoints, modes, gradients of a part."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import headwise as hw
from headwise import BackendRefused
from tests.support.budget import assert_same_bits
from tests.support.oracle import attention
from tests.support.shapes import Sizes, inputs

SIZES = Sizes(batch=2, kv_heads=1, group=3, q_len=5, kv_len=7, head_dim=8, value_dim=6)
Program = Callable[..., Tensor]


def native(*given: Tensor, share: float = 0.0) -> Tensor:
    query, key, value = given
    return hw.attend(query, key, value, hw.Causal(), dropout_p=share, backend="native")


def gradients(program: Program, *given: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(11)
    learned = [part.detach().clone().requires_grad_() for part in given]
    torch.autograd.backward(program(*learned).square().sum())
    return tuple(part.grad for part in learned if part.grad is not None)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_checkpoint_repeats_the_same_dropout(reentrant: bool, share: float) -> None:
    def plain(*given: Tensor) -> Tensor:
        return native(*given, share=share)

    def kept(*given: Tensor) -> Tensor:
        found: Tensor = checkpoint(plain, *given, use_reentrant=reentrant)
        return found

    given = inputs(SIZES)
    for found, wanted in zip(gradients(kept, *given), gradients(plain, *given), strict=True):
        assert_same_bits(found, wanted)


def test_a_compiled_checkpoint_repeats_the_same_dropout() -> None:
    def plain(*given: Tensor) -> Tensor:
        return native(*given, share=0.5).sin()

    def kept(*given: Tensor) -> Tensor:
        found: Tensor = checkpoint(plain, *given, use_reentrant=False)
        return found

    compiled = torch.compile(kept, backend="aot_eager", fullgraph=True)
    given = inputs(SIZES)
    for found, wanted in zip(gradients(compiled, *given), gradients(plain, *given), strict=True):
        assert_same_bits(found, wanted)


def test_the_generator_decides_and_is_left_alone_without_dropout() -> None:
    given = inputs(SIZES)
    before = torch.get_rng_state()
    native(*given)
    hw.explain(*given, dropout_p=0.5)
    assert torch.equal(torch.get_rng_state(), before)
    first = native(*given, share=0.5)
    assert not torch.equal(native(*given, share=0.5), first)
    torch.set_rng_state(before)
    assert_same_bits(native(*given, share=0.5), first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    given = inputs(SIZES)
    bias = torch.randn(5, 7)
    half = [part.to(dtype) for part in given]

    def cast(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype):
            output = hw.attend(query, key, value, bias=bias, backend="native")
        assert output.dtype == dtype
        return output.float()

    found = gradients(cast, *given, bias)
    wanted = gradients(
        lambda *parts: hw.attend(*parts[:3], bias=parts[3], backend="native").float(), *half, bias
    )
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        assert_same_bits(one, other.float())
    compiled = torch.compile(cast, backend="aot_eager", fullgraph=True)
    for one, other in zip(gradients(compiled, *given, bias), found, strict=True):
        assert_same_bits(one, other)


def test_inference_mode() -> None:
    given = inputs(SIZES)
    layer = hw.MultiHeadAttention(8, 2).eval()
    x = torch.randn(2, 5, 8)
    with torch.inference_mode():
        found, within = native(*given), layer(x)
    assert found.is_inference()
    assert_same_bits(found, native(*given))
    with torch.no_grad():
        assert_same_bits(within, layer(x))


@pytest.mark.parametrize("shape", [(5, 5), (1, 5), (5, 1), (2, 1, 1, 5), (1, 3, 1, 1)])
def test_only_the_bias_learns(shape: tuple[int, ...]) -> None:
    """B70: its gradient has its own shape, and is 0 where it is ``-inf``."""
    given = inputs(SIZES._replace(q_len=5, kv_len=5))
    bias = torch.randn(shape)
    bias.view(-1)[1:2] = float("-inf")
    bias.requires_grad_()
    torch.autograd.backward(hw.attend(*given, bias=bias, backend="native").square().sum())
    exact = bias.detach().double().requires_grad_()
    torch.autograd.backward(attention(*given, bias=exact).output.square().sum())
    torch.testing.assert_close(bias.grad, exact.grad, check_dtype=False, rtol=1e-4, atol=1e-5)


def test_second_derivatives_are_refused_or_left_to_the_reference() -> None:
    query, key, value = (part.requires_grad_() for part in inputs(SIZES))

    def penalty(backend: str) -> Tensor:
        output = hw.attend(query, key, value, hw.Causal(), backend=backend)
        (first,) = torch.autograd.grad(output.square().sum(), query, create_graph=True)
        return first.square().sum()

    with pytest.raises(BackendRefused) as caught:
        torch.autograd.backward(penalty("native"))
    assert str(caught.value) == (
        "attend: the native backend has no second derivatives, and one is wanted\n"
        '  hint: pass backend="reference" to the call that is derived twice'
    )
    torch.autograd.backward(penalty("reference"))
    assert query.grad is not None
    assert query.grad.isfinite().all()


def test_saved_tensors_may_travel() -> None:
    given = inputs(SIZES)

    def travelling(*parts: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda kept: kept.numpy(force=True), torch.from_numpy):
            return native(*parts)

    for found, wanted in zip(gradients(travelling, *given), gradients(native, *given), strict=True):
        assert_same_bits(found, wanted)


def test_an_input_changed_before_the_backward_pass_is_an_error() -> None:
    query, key, value = inputs(SIZES)
    output = native(query.requires_grad_(), key, value)
    key.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(output.sum())


def test_a_mode_that_watches_sees_one_operator() -> None:
    given = [part.requires_grad_() for part in inputs(SIZES)]
    with FlopCounterMode(display=False):
        watched = native(*given)
        torch.autograd.backward(watched.sum())
    assert_same_bits(watched, native(*given))


def test_a_mode_may_watch_the_backward_pass_alone() -> None:
    pattern = hw.KeyMask(torch.rand(2, 7) < 0.7) & hw.Causal()

    def watched(*given: Tensor) -> Tensor:
        query, key, value = given
        return hw.attend(query, key, value, pattern, backend="native")

    wanted = gradients(watched, *inputs(SIZES))
    learned = [part.requires_grad_() for part in inputs(SIZES)]
    output = watched(*learned)
    with FlopCounterMode(display=False):
        torch.autograd.backward(output.square().sum())
    for part, right in zip(learned, wanted, strict=True):
        assert part.grad is not None
        assert_same_bits(part.grad, right)


def test_a_batch_of_gradients_is_refused() -> None:
    query, key, value = inputs(SIZES)
    output = native(query.requires_grad_(), key, value)
    upstream = torch.ones(3, *output.shape)
    with pytest.raises(BackendRefused) as caught:
        torch.autograd.grad(output, query, upstream, is_grads_batched=True)
    assert str(caught.value) == (
        "attend: the native backend takes one gradient at a time, and a batch of them is given\n"
        "  hint: use torch.func.vjp with torch.vmap in place of is_grads_batched=True, and "
        "torch.func.jacrev in place of vectorize=True"
    )


def test_patterns_survive_copies_after_use() -> None:
    pattern = hw.KeyMask(torch.ones(2, 7)) & hw.Causal()
    given = inputs(SIZES)
    wanted = hw.attend(*given, pattern, backend="native")
    assert_same_bits(hw.attend(*given, copy.deepcopy(pattern), backend="native"), wanted)

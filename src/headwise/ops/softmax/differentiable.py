"""Native attention as a function that autograd and the transforms of torch.func know.

Kernels are called on the tensors themselves where nobody watches, and as operators of torch where
somebody does: a compiler, an export, a mode, or tensors without data.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from typing_extensions import override

from headwise._forks import alone_after_fork
from headwise.ops.softmax import launch, mapped, operators
from headwise.ops.softmax.gradients import of_inputs, refuse_batched, refuse_second
from headwise.ops.softmax.launch import Added, Given
from headwise.ops.watchers import is_transformed, is_watched


class Attend(Function):
    """Output and log-sum-exp from (query, key, value, *added, rules, *tensors of the pattern)."""

    @staticmethod
    @override
    def forward(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        added, rules, tensors = Added(*rest[:5]), rest[5], rest[6:]
        if is_watched(query, key, value, *added, *tensors):
            return operators.attend(query, key, value, added, rules, tensors)
        output, lse = launch.forward(query, key, value, added, rules, tensors)
        assert lse is not None
        return output, lse

    @staticmethod
    @override
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.rules = inputs[8]
        ctx.save_for_backward(*inputs[:3], *output, *inputs[3:8], *inputs[9:])

    @staticmethod
    @override
    def backward(ctx: Any, d_output: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
        return _derived(ctx, d_output, d_lse)

    @staticmethod
    @override
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        return mapped.attend(Attend.apply, info.batch_size, in_dims, args)


class AttendPlainly(Function):
    """What ``Attend`` does where no transform is active, with less to do for each call."""

    @staticmethod
    @override
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        found = Attend.forward(*inputs)
        Attend.setup_context(ctx, inputs, found)
        return found

    @staticmethod
    @override
    def backward(ctx: Any, d_output: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
        return _derived(ctx, d_output, d_lse)


class Gradients(Function):
    """Gradients from (whether of what is added, d_output, d_lse, *given, *added, rules, *tensors).

    Of query, key, value and sinks, or of the bias or table alone.
    """

    @staticmethod
    @override
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return _computed(*inputs)

    @staticmethod
    @override
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        raise refuse_second()

    @staticmethod
    @override
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        return mapped.gradients(Gradients.apply, info.batch_size, in_dims, args)


@alone_after_fork
def _derived(ctx: Any, d_output: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:  # noqa: ANN401
    """Return the gradients of all inputs of ``Attend``."""
    saved = ctx.saved_tensors
    for gradient in (d_output, d_lse):
        if gradient is not None and torch._C._functorch.is_legacy_batchedtensor(gradient):
            raise refuse_batched()
    alone = not torch.is_grad_enabled() and not is_transformed()
    compute = _computed if alone else Gradients.apply

    def run(of_added: bool, d_output: Tensor) -> tuple[Tensor, ...]:
        return compute(of_added, d_output, d_lse, *saved[:10], ctx.rules, *saved[10:])

    needed = ctx.needs_input_grad
    found = of_inputs(needed, d_output, d_lse, saved[3], run)
    return (*found, *[None] * (len(needed) - len(found)))


def _computed(
    of_added: bool,
    d_output: Tensor,
    d_lse: Tensor | None,
    *rest: Any,  # noqa: ANN401
) -> tuple[Tensor, ...]:
    given, added, rules, tensors = Given(*rest[:5]), Added(*rest[5:10]), rest[10], rest[11:]
    watched = is_watched(d_output, d_lse, *given, *added, *tensors)
    if of_added:
        run = operators.attend_bias_backward if watched else launch.bias_backward
        return (run(d_output, d_lse, given, added, rules, tensors),)
    run_all = operators.attend_backward if watched else launch.backward
    return run_all(d_output, d_lse, given, added, rules, tensors)

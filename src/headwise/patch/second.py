"""Derivatives of derivatives, which torch's own attention has for calls that its MATH computes."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from typing_extensions import override

from headwise.ops import attend
from headwise.ops.watchers import is_transformed, is_watched
from headwise.patterns import Pattern


class Rules(NamedTuple):
    """What a call of ``headwise.attend`` says besides its tensors; its first query stands at 0."""

    pattern: Pattern | None
    scale: float | None
    dropout_p: float


def derivable(
    rules: Rules, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
) -> Tensor:
    """Attend, and see to it that gradients of the result have gradients.

    They are those of the kernels until ``create_graph`` or ``is_grads_batched`` wants more than
    the kernels give. Then the backend ``"reference"`` makes them in plain torch, with the same
    dropout.
    """
    given = (query, key, value, bias)
    if is_watched(*given) or is_transformed() or not _wants_gradient(given):
        return _attended(rules, "auto", *given)
    state = torch.get_rng_state() if rules.dropout_p > 0.0 else None
    output = _attended(rules, "auto", *given)
    found: Tensor = _Derivable.apply(output, rules, state, *given)  # type: ignore[no-untyped-call]
    return found


class _Derivable(Function):
    """The output as it is; the backward decides who makes the gradients of what gave it."""

    @staticmethod
    @override
    def forward(
        ctx: Any, output: Tensor, rules: Rules, state: Tensor | None, *given: Tensor | None
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.rules, ctx.state = rules, state
        ctx.save_for_backward(*given)
        # No view to autograd, and counted as one with the output when it is changed in place.
        return output.detach()

    @staticmethod
    @override
    def backward(ctx: Any, d_output: Tensor | None) -> tuple[Tensor | None, ...]:
        batched = d_output is not None and torch._C._functorch.is_legacy_batchedtensor(d_output)
        if d_output is None or not (batched or torch.is_grad_enabled()):
            return d_output, None, None, None, None, None, None
        needed = ctx.needs_input_grad[3:]
        return (
            None,
            None,
            None,
            *_gradients(ctx.rules, ctx.state, ctx.saved_tensors, needed, d_output),
        )


def _gradients(
    rules: Rules,
    state: Tensor | None,
    given: tuple[Any, ...],
    needed: tuple[bool, ...],
    d_output: Tensor,
) -> list[Tensor | None]:
    """Return the gradients of query, key, value and bias as results of torch's operations."""
    more = torch.is_grad_enabled()
    with (
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.random.fork_rng([], enabled=state is not None),
    ):
        if state is not None:
            torch.set_rng_state(state)
        # One tensor may have been given several times.
        apart = [None if tensor is None else tensor.view_as(tensor) for tensor in given]
        query, key, value, bias = apart
        assert query is not None
        assert key is not None
        assert value is not None
        output = _attended(rules, "reference", query, key, value, bias)
        wanted = [
            part for part, need in zip(apart, needed, strict=True) if need and part is not None
        ]
        found = iter(torch.autograd.grad(output, wanted, d_output, create_graph=more))
    return [next(found) if need else None for need in needed]


def _attended(
    rules: Rules, backend: str, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
) -> Tensor:
    return attend(
        *(query, key, value, rules.pattern),
        bias=bias,
        scale=rules.scale,
        dropout_p=rules.dropout_p,
        q_offset=0,
        backend=backend,
    )


def _wants_gradient(given: tuple[Tensor | None, ...]) -> bool:
    return torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in given
    )

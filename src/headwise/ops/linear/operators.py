"""The compiled sums of linear attention as an operator of torch, for graphs.

It is its own derivative's operator, so it can be derived as often as one likes.
"""

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.library import Library

from headwise.ops.linear.derivative import Kept, derive, kept
from headwise.ops.linear.launch import Found, Given, launch, sized

_SCHEMA = (
    "linear_sums(Tensor query, Tensor key, Tensor value, Tensor? gain, Tensor? offset, "
    "Tensor? log_decay, Tensor? sums, Tensor? normaliser, Tensor? log_scale, bool causal, "
    "bool backwards) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)

Context: TypeAlias = Any  # of autograd

_library = Library("headwise", "FRAGMENT")  # type: ignore[no-untyped-call]


def linear_sums(given: Given, causal: bool, backwards: bool) -> Found:
    """Run the kernel as an operator."""
    return Found(*torch.ops.headwise.linear_sums.default(*given, causal, backwards))


def _run(*inputs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    return tuple(launch(Given(*inputs[:9]), *inputs[9:]))


def _sized(*inputs: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    return tuple(sized(Given(*inputs[:9])))


def _keep(ctx: Context, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.rules = inputs[9:]
    ctx.mark_non_differentiable(output[4])
    ctx.save_for_backward(*inputs[:9], *kept(Found(*output), ctx.needs_input_grad))


def _derive(ctx: Context, *wanted: Tensor | None) -> tuple[Any, ...]:
    saved, count = ctx.saved_tensors, len(Given._fields)
    given, found = Given(*saved[:count]), Kept(*saved[count:])
    needed = ctx.needs_input_grad[:count]
    gradients = derive(linear_sums, given, found, Found(*wanted), needed, *ctx.rules)  # type: ignore[arg-type]
    return (*gradients, None, None)


_library.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
_library.impl("linear_sums", _run, "CPU")  # type: ignore[no-untyped-call]
torch.library.register_fake("headwise::linear_sums", _sized, lib=_library)
torch.library.register_autograd("headwise::linear_sums", _derive, setup_context=_keep, lib=_library)

"""Exponentials of random projections through the compiled kernel, and their derivative.

With ``y = factor * x`` and the directions ``w``, a token has the values ``exp(w @ y - peak) +
least``, where ``peak`` is the highest ``w @ y`` of the token, and the gain ``peak - |y|² / 2 -
log_norm``. For a query the peak and the square are left out for good, for they cancel; for a key
they are factors of its values that the gain brings back, so the square has a gradient.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.nn.functional import pad
from typing_extensions import override

from headwise import _native
from headwise._forks import alone_after_fork
from headwise.ops.softmax.launch import dense_rows, kernels
from headwise.ops.watchers import is_transformed, is_watched

_COMPUTED = (torch.float32, torch.bfloat16, torch.float16)
_LANES = 16  # columns of directions come in multiples of it


class Rules(NamedTuple):
    """What the exponentials depend on besides tensors."""

    factor: float
    log_norm: float
    least: float
    is_query: bool


def takes(x: Tensor, directions: Tensor) -> bool:
    """Say whether the kernel computes these; what does not fit is for torch's operations."""
    return (
        _native.kernels is not None
        and x.ndim == 4
        and x.is_cpu
        and x.dtype in _COMPUTED
        and directions.is_cpu
        and not directions.requires_grad
        and not is_watched(x, directions)
        and not is_transformed()
        and forward_ad._current_level < 0
    )


def exponentials(x: Tensor, directions: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """Return values (batch, heads, length, count), and gains (batch, heads, length) float32.

    Args:
        x: (batch, heads, length, dim).
        directions: (count, dim) float32.
        rules: As above.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        found: tuple[Tensor, Tensor]
        found = _Exponentials.apply(x, directions, rules)  # type: ignore[no-untyped-call]
        return found
    return _launch(x, directions, rules)


def _launch(x: Tensor, directions: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    count = directions.shape[0]
    values = x.new_empty((*x.shape[:-1], count))
    gain = x.new_empty(x.shape[:-1], dtype=torch.float32)
    columns = pad(directions.float().t(), (0, -count % _LANES)).contiguous()
    kernels().random_features(
        dense_rows(x), columns, values, gain, *rules[:3], torch.get_num_threads()
    )
    return values, gain


def _by_torch(x: Tensor, directions: Tensor, rules: Rules) -> Tensor:
    """Return the values by operations that have derivatives of their own."""
    y = x.float() * rules.factor
    along = y @ directions.float().t()
    taken = along.detach().amax(-1, keepdim=True)
    if not rules.is_query:
        lost = y.square().sum(-1, keepdim=True) / 2
        taken = taken + lost - lost.detach()
    return ((along - taken).exp() + rules.least).to(x.dtype)


class _Exponentials(Function):
    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, directions: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
        values, gain = _launch(x, directions, rules)
        ctx.rules = rules
        ctx.mark_non_differentiable(gain)
        ctx.save_for_backward(x, directions, values)
        return values, gain

    @staticmethod
    @override
    @alone_after_fork
    def backward(ctx: Any, d_values: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, directions, values = ctx.saved_tensors
        rules: Rules = ctx.rules
        if torch.is_grad_enabled():
            again = _by_torch(x, directions, rules)
            return *torch.autograd.grad(again, (x,), d_values, create_graph=True), None, None
        slope = (values.float() - rules.least).mul_(d_values)
        d_x = slope @ directions.float()
        if not rules.is_query:
            d_x.addcmul_(x.float(), slope.sum(-1, keepdim=True), value=-rules.factor)
        return d_x.mul_(rules.factor).to(x.dtype), None, None

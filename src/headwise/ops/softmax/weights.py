"""Softmax weights spelled out in few passes, for queries and keys that are finite."""

from math import isfinite

import torch
from torch import Tensor

from headwise.ops.softmax.call import Call
from headwise.ops.watchers import is_transformed, is_watched


def suits(call: Call) -> bool:
    """Say whether ``run`` gives what the definition does.

    What is not finite must be kept out of the product of all rows, and tracers cannot say whether
    anything is; biases by distance are spelled out by the definition alone.
    """
    if is_transformed() or is_watched(call.query, call.key, call.bias, call.sinks):
        return False
    if call.slopes is not None or call.distances is not None or call.query.is_meta:
        return False
    return is_finite(call.query) and is_finite(call.key)


def is_finite(numbers: Tensor) -> bool:
    """Say whether all numbers are finite; no compiler or transform can follow this question.

    A finite sum says so in one pass. Finite numbers with a sum beyond the dtype are looked at.
    """
    numbers = numbers.detach()
    total = numbers.sum(dtype=torch.promote_types(numbers.dtype, torch.float32))
    return isfinite(total.item()) or bool(numbers.isfinite().all())


def run(call: Call, allowed: Tensor | None) -> Tensor:
    """Return the weights of all rows and heads of ``call``, in float32 or wider.

    Args:
        call: One key head for each query head.
        allowed: Which pairs may meet; ``None`` = all.
    """
    work = torch.promote_types(call.query.dtype, torch.float32)
    with torch.autocast(call.query.device.type, enabled=False):
        scores = call.query.to(work) @ call.key.to(work).transpose(-1, -2)
        scores = scores.mul_(call.scale)
        if call.softcap is not None:
            scores = scores.div_(call.softcap).tanh().mul(call.softcap)
        if call.bias is not None:
            closed = call.bias == float("-inf")
            scores = scores + call.bias.masked_fill(closed, 0.0)
            if bool(closed.any()):
                allowed = ~closed if allowed is None else allowed & ~closed
        if allowed is None:
            return _softmax(scores, call.sinks)
        empty = ~allowed.any(-1, keepdim=True)
        # A closed row has no softmax; zeros in its place keep NaN out of the gradient, too.
        scores = scores.masked_fill_(~(allowed | empty), float("-inf"))
        return _softmax(scores.masked_fill_(empty, 0.0), call.sinks).masked_fill(empty, 0.0)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return scores.softmax(-1)
    behind = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, behind], -1).softmax(-1)[..., : scores.shape[-1]]

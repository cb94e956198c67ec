"""The gradients of attention as fused kernels take them, spelled out in plain PyTorch.

Autograd through the formula subtracts ``sum(weights * d_weights)``; a kernel that keeps no weights
subtracts ``sum(d_output * output)``. The two are equal, and round differently.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Scored(NamedTuple):
    """What a call adds to its scores, spelled out for every pair, and what its rows get back."""

    seen: Tensor
    bias: Tensor | None
    sinks: Tensor | None
    kept: Tensor | None
    scale: float
    softcap: float | None


def gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rules: Scored,
    d_output: Tensor,
    d_lse: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of query, key, value and bias, summed in float32 or wider.

    That of the bias is spelled out for every pair.
    """
    dtype, wide = query.dtype, torch.promote_types(query.dtype, torch.float32)
    batch, kv_heads = key.shape[:2]
    group = query.shape[1] // kv_heads
    q, d_out = query.to(wide), d_output.to(wide)
    k, v = (t.to(wide).repeat_interleave(group, 1) for t in (key, value))
    scores = q @ k.transpose(-1, -2) * rules.scale
    slope = torch.ones_like(scores)
    if rules.softcap is not None:
        bend = torch.tanh(scores / rules.softcap)
        scores, slope = rules.softcap * bend, 1.0 - bend * bend
    if rules.bias is not None:
        scores = scores + rules.bias.to(wide)
    scores = scores.masked_fill(~rules.seen, float("-inf"))
    total = scores
    if rules.sinks is not None:
        column = rules.sinks.to(wide).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        total = torch.cat([scores, column], -1)
    weights = (scores - total.logsumexp(-1, keepdim=True)).exp().masked_fill(~rules.seen, 0.0)
    kept = torch.ones_like(weights) if rules.kept is None else rules.kept.to(wide)
    output = (weights * kept) @ v
    delta = (d_out * output.to(dtype).to(wide)).sum(-1, keepdim=True)
    if d_lse is not None:
        delta = delta - d_lse.to(wide).unsqueeze(-1)
    d_bias = weights * (d_out @ v.transpose(-1, -2) * kept - delta)
    d_scores = d_bias * slope * rules.scale

    def of_group(gradient: Tensor) -> Tensor:
        parts = gradient.view(batch, kv_heads, group, *gradient.shape[2:])
        return parts.sum(2).to(dtype)

    d_key = of_group(d_scores.transpose(-1, -2) @ q)
    d_value = of_group((weights * kept).transpose(-1, -2) @ d_out)
    return (d_scores @ k).to(dtype), d_key, d_value, d_bias

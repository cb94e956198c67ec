"""Positive random features: the arithmetic of FAVOR+ over given directions."""

from math import log, sqrt

import torch
from torch import Tensor
from torch.nn import functional

from headwise.ops.linear import exponentials
from headwise.ops.linear.features import Features
from headwise.ops.linear.precision import without_autocast

KERNELS = ("softmax", "hyperbolic", "relu")

# Added to features that may all be 0 for a token, which would then see nothing.
RELU_FLOOR = 1e-3

# Added to features whose largest is about 1. Too small to show beside it, but a query and keys that
# have nothing else in common still have weights that sum to more than 0: products of two do not
# underflow, and in float16, whose products are summed in float32, it is the smallest number.
LEAST = {torch.float16: 2.0**-24, torch.float64: 2.0**-511}
LEAST_OTHERWISE = 2.0**-63


def positive_features(
    x: Tensor, directions: Tensor, *, kernel: str, scale: float, is_query: bool, normalize: bool
) -> Features:
    """Return the features of queries or keys, see ``headwise.nn.RandomFeatures``.

    Args:
        x: (…, head_dim).
        directions: (rows, head_dim).
        kernel: One of ``KERNELS``.
        scale: Multiplier of the scores.
        is_query: As in ``headwise.ops.FeatureMap``.
        normalize: Likewise.
    """
    if kernel == "softmax" and normalize and exponentials.takes(x, directions):
        log_norm = log(directions.shape[0]) / 2
        least = LEAST.get(x.dtype, LEAST_OTHERWISE)
        rules = exponentials.Rules(sqrt(scale), log_norm, least, is_query)
        values, gain = exponentials.exponentials(x, directions, rules)
        return Features(values) if is_query else Features(values, gain)
    wide = torch.promote_types(x.dtype, torch.float32)
    count = directions.shape[0] * (2 if kernel == "hyperbolic" else 1)
    with without_autocast(x):
        y = x.to(wide) * sqrt(scale)
        along = functional.linear(y, directions.to(wide))
        if kernel == "relu":
            return Features((along.relu() + RELU_FLOOR).mul_(count**-0.5).to(x.dtype))
        if kernel == "hyperbolic":
            along = torch.cat([along, -along], -1)
        if normalize and is_query:
            # Whatever is taken out of a query cancels, the lost part too.
            return Features(_exponentials(along, along.detach().amax(-1), x.dtype))
        lost = y.square().sum(-1) / 2 + log(count) / 2
        if not normalize:
            return Features(along.sub_(lost.unsqueeze(-1)).exp_().to(x.dtype))
        peak = along.detach().amax(-1)
        # 0 with the gradient of `lost`, whose own size goes into the gain.
        slope = lost - lost.detach()
        # NaN where the square is beyond the dtype's range: -inf would say that there is no key.
        gain = peak - lost.detach() + slope.detach()
        return Features(_exponentials(along, peak + slope, x.dtype), gain)


def _exponentials(exponents: Tensor, taken: Tensor, dtype: torch.dtype) -> Tensor:
    """Return exponentials in a dtype, none of them 0; ``taken`` is subtracted before."""
    values, least = exponents.sub_(taken.unsqueeze(-1)).exp_(), LEAST.get(dtype, LEAST_OTHERWISE)
    return (values + least if torch.is_grad_enabled() else values.add_(least)).to(dtype)

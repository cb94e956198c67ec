"""Softmax attention in a few lines of its own; what every answer of the library is judged by."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tests.support.budget import largest_error

CLOSED = float("-inf")


class Answer(NamedTuple):
    """Output, weights and log-sum-exp of one call."""

    output: Tensor
    weights: Tensor
    lse: Tensor


class Extras(NamedTuple):
    """What changes the weights besides a bias; ``kept`` is a factor of each, 0 where dropped."""

    softcap: float | None = None
    sinks: Tensor | None = None
    kept: Tensor | None = None


NO_EXTRAS = Extras()


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    extras: Extras = NO_EXTRAS,
    dtype: torch.dtype = torch.float64,
) -> Answer:
    """Spell attention out step by step in ``dtype``; four dimensions, grouped heads expanded.

    In float64 it is the oracle. In the dtype under test it is the plain spelling that the budget
    compares with. A query that sees nothing gets output 0, weights 0 and log-sum-exp ``-inf``. The
    weights returned are those after dropout.
    """
    group = query.shape[1] // key.shape[1] if key.shape[1] else 1
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    key, value = (t[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for t in (key, value))
    factor = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    scores = torch.matmul(query, key.mT) * factor
    if extras.softcap is not None:
        scores = extras.softcap * torch.tanh(scores / extras.softcap)
    seen = torch.ones_like(scores, dtype=torch.bool)
    if visible is not None:
        seen = seen & visible
    if bias is not None:
        seen = seen & (bias != CLOSED)
        scores = scores + bias.masked_fill(bias == CLOSED, 0).to(dtype)
    scores = scores.masked_fill(~seen, CLOSED)
    nothing = ~seen.any(-1, keepdim=True)
    if scores.shape[-1] == 0:
        lse = scores.new_full(scores.shape[:-1], CLOSED)
        return Answer(torch.matmul(scores, value), scores, lse)
    top = scores.detach().amax(-1, keepdim=True)
    sinks = None if extras.sinks is None else extras.sinks.to(dtype).view(1, -1, 1, 1)
    if sinks is not None:
        top = torch.maximum(top, sinks.detach())
    top = top.masked_fill(nothing, 0.0)
    powers = (scores - top).exp()
    total = powers.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks - top).exp()
    total = total.masked_fill(nothing, 1.0)
    weights = powers / total
    if extras.kept is not None:
        weights = weights * extras.kept.to(dtype)
    lse = (top + total.log()).masked_fill(nothing, CLOSED).squeeze(-1)
    if value.isfinite().all():
        return Answer(torch.matmul(weights, value), weights, lse)
    products = weights.unsqueeze(-1) * value.unsqueeze(-3)
    return Answer(products.masked_fill(~seen.unsqueeze(-1), 0.0).sum(-2), weights, lse)


def unlucky(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None = None,
    *,
    exact: Answer,
    bias: Tensor | None = None,
    scale: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> Answer:
    """Spell attention out in ``dtype``, and of two orders of summation keep the less lucky one.

    Small calls are often nearly exact by chance. Sums over head_dim and keys are therefore also
    taken backwards, and of each result the one with the larger error is returned.
    """
    one = attention(query, key, value, visible, bias=bias, scale=scale, dtype=dtype)
    two = attention(
        query.flip(-1),
        key.flip(-1, -2),
        value.flip(-2),
        _turned(visible),
        bias=_turned(bias),
        scale=scale,
        dtype=dtype,
    )
    two = two._replace(weights=two.weights.flip(-1))
    pairs = zip(one, two, exact, strict=True)
    return Answer(*(max(a, b, key=partial(largest_error, exact=e)) for a, b, e in pairs))


def _turned(mask: Tensor | None) -> Tensor | None:
    return mask if mask is None or mask.ndim == 0 else mask.flip(-1)

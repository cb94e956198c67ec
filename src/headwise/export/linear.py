"""The operator of linear attention in operations that ONNX has."""

from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.errors import BackendRefused


class _State(NamedTuple):
    sums: Tensor
    normaliser: Tensor
    log_scale: Tensor


def linear_sums(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *rest: Any,  # noqa: ANN401
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Do what ``headwise::linear_sums`` does.

    Where it is causal, the weights of all pairs are made: there is no loop over an open length.

    Args:
        query: (batch, heads, q_len, features).
        key: (batch, kv_heads, kv_len, features).
        value: (batch, kv_heads, kv_len, value_dim).
        rest: The operator's other arguments, in its order.

    Returns:
        Values, divisors and the state, in the operator's form.

    Raises:
        BackendRefused: The graph of a derivative.
    """
    gain, offset, log_decay, sums, normaliser, log_scale, causal, backwards = rest
    if backwards:
        raise BackendRefused(
            "headwise.export: an ONNX file holds no derivative of linear attention, and this graph "
            "has one\n  hint: export the forward pass, under torch.no_grad()"
        )
    query, key, value = query.float(), key.float(), value.float()
    heads = key.shape[1], query.shape[1] // key.shape[1]
    asked = query.reshape(query.shape[0], *heads, *query.shape[2:])
    gains = torch.zeros_like(key[..., 0]) if gain is None else gain
    decay = torch.zeros_like(key[0, :, 0, 0]) if log_decay is None else log_decay
    before = None
    if sums is not None:
        before = _State(sums, normaliser, log_scale)
    after = _after(key, value, gains, decay, before, gain is not None)
    if not causal:
        return (*_read(asked, after), *after)
    place = torch.arange(query.shape[2], device=query.device)
    rows = torch.zeros_like(query[..., 0]) if offset is None else offset
    rows = rows.reshape(rows.shape[0], *heads, rows.shape[-1])
    ahead = place.unsqueeze(1) - place
    exponents = gains[:, :, None, None] + decay[:, None, None, None] * ahead + rows.unsqueeze(-1)
    shares = torch.where(ahead >= 0, exponents, -inf).exp()
    weights = (asked @ key.unsqueeze(2).transpose(-1, -2)) * shares
    values, total = weights @ value.unsqueeze(2), weights.sum(-1)
    if before is not None:
        faded = before.log_scale[:, :, None, None] + decay[:, None, None] * (place + 1) + rows
        held, sum_of_held = _read(asked * faded.exp().unsqueeze(-1), before)
        return (values.flatten(1, 2) + held, total.flatten(1, 2) + sum_of_held, *after)
    return (values.flatten(1, 2), total.flatten(1, 2), *after)


def running_max(numbers: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the largest number up to every place, and where it stands, the last of equal ones."""
    moved = numbers.movedim(dim, -1)
    place = torch.arange(moved.shape[-1], device=moved.device)
    before = place <= place.unsqueeze(1)
    largest = torch.where(before, moved.unsqueeze(-2), -inf).amax(-1)
    equal = before & (moved.unsqueeze(-2) == largest.unsqueeze(-1))
    stands = torch.where(equal, place, -1).amax(-1)
    return largest.movedim(-1, dim), stands.movedim(-1, dim)


def _after(
    key: Tensor, value: Tensor, gains: Tensor, decay: Tensor, before: _State | None, scaled: bool
) -> _State:
    """Return the state behind the last key; ``scaled``: with its largest factor taken out."""
    length = key.shape[2]
    left = length - 1 - torch.arange(length, device=key.device)
    exponents = gains + decay.unsqueeze(-1) * left
    behind = None if before is None else before.log_scale + decay * length
    scale = torch.zeros_like(exponents[..., 0])
    if scaled:
        scale = exponents.amax(-1)
        scale = scale if behind is None else torch.maximum(scale, behind)
    taken = torch.where(scale == -inf, 0.0, scale)
    kept = key * (exponents - taken.unsqueeze(-1)).exp().unsqueeze(-1)
    sums, normaliser = kept.transpose(-1, -2) @ value, kept.sum(-2)
    if before is not None and behind is not None:
        share = (behind - taken).exp().unsqueeze(-1)
        sums = sums + before.sums * share.unsqueeze(-1)
        normaliser = normaliser + before.normaliser * share
    return _State(sums, normaliser, scale)


def _read(asked: Tensor, state: _State) -> tuple[Tensor, Tensor]:
    """Return values and divisors of queries (batch, kv_heads, group, q_len, features)."""
    values = asked @ state.sums.unsqueeze(2)
    total = asked @ state.normaliser[:, :, None, :, None]
    return values.flatten(1, 2), total.squeeze(-1).flatten(1, 2)

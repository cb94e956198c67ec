"""Linear attention token by token: what decoding does, and nothing but a state is kept."""

import torch
from torch import Tensor

from headwise.ops.linear.absorb import absorbed
from headwise.ops.linear.scales import row_scales, whole_scale, without_nothing
from headwise.ops.linear.state import LinearState, Sums, empty_state, work_dtype


def linear_sums(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    log_gain: Tensor | None,
    offset: Tensor | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    causal: bool,
) -> Sums:
    """Return values and divisors of every row, and the state; see ``sums.linear_sums``."""
    work, (kv_heads, length) = work_dtype(value), key.shape[1:3]
    if not length:
        # Sums of no tokens, but with a gradient for them, of their size.
        state = absorbed(key, value, log_gain=log_gain, log_decay=log_decay, state=state)
    state = empty_state(key, value, has_gain=log_gain is not None) if state is None else state
    scales: Tensor | None = None
    if log_gain is not None and causal and offset is not None:
        scales = row_scales(offset, log_gain, state)
    elif log_gain is not None:
        end = whole_scale(log_gain, log_decay, state)
        scales = end.unsqueeze(-1).expand_as(log_gain)
    group = query.shape[1] // kv_heads if kv_heads else 0
    asked = query.to(work).reshape(len(query), kv_heads, group, *query.shape[2:])
    key, value, now = key.to(work), value.to(work), state
    found: list[tuple[Tensor, Tensor]] = []
    for place in range(length):
        now = _after(
            now,
            key[:, :, place],
            value[:, :, place],
            log_decay,
            _at(scales, place),
            _at(log_gain, place),
        )
        if causal:
            found.append(_read(asked[:, :, :, place], now))
    if causal and found:
        values, normaliser = (torch.stack(parts, 3) for parts in zip(*found, strict=True))
    else:
        values, normaliser = _read(asked.flatten(2, 3), now)
    return Sums(
        values.reshape(*query.shape[:3], value.shape[3]),
        normaliser.reshape(query.shape[:3]),
        now,
    )


def _after(
    state: LinearState,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    scale: Tensor | None,
    log_gain: Tensor | None,
) -> LinearState:
    """Return the state behind one more token, at its scale."""
    kept = log_decay
    if scale is not None and log_gain is not None:
        taken = without_nothing(scale)
        change = state.log_scale - taken
        kept = change if kept is None else change + kept
        key = key * (log_gain - taken).exp().unsqueeze(-1)
    sums, normaliser, before = state
    if kept is not None:
        share = kept.exp()
        sums, normaliser = sums * share[..., None, None], normaliser * share.unsqueeze(-1)
    return LinearState(
        sums + key.unsqueeze(-1) * value.unsqueeze(-2),
        normaliser + key,
        before if scale is None else scale,
    )


def _read(query: Tensor, state: LinearState) -> tuple[Tensor, Tensor]:
    """Return values and divisors of queries (batch, kv_heads, queries, features)."""
    return query @ state.sums, (query @ state.normaliser.unsqueeze(-1)).squeeze(-1)


def _at(numbers: Tensor | None, place: int) -> Tensor | None:
    return None if numbers is None else numbers[..., place]

"""Linear attention in chunks of rows, in plain PyTorch: any device, any dtype, any derivative.

Inside a chunk the weights are spelled out; what lies before it is a state. Memory grows with the
length, not with its square, and no later key takes part in the sums of an earlier row.
"""

import torch
from torch import Tensor

from headwise.ops.linear.absorb import absorbed
from headwise.ops.linear.chunk_factors import cut, factors_of, summed
from headwise.ops.linear.scales import row_scales
from headwise.ops.linear.state import LinearState, Sums, empty_state, work_dtype

# Rows of a chunk, whatever the call.
CHUNK = 128


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
    if causal and key.shape[2]:
        return _causal(query, key, value, log_gain, offset, log_decay, state)
    after = absorbed(key, value, log_gain=log_gain, log_decay=log_decay, state=state)
    found = _by_kv_head(query.to(work_dtype(value)), key).flatten(2, 3) @ _joined(after)
    return _apart(found.reshape(*query.shape[:3], found.shape[-1]), after)


def _causal(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_gain: Tensor | None,
    offset: Tensor | None,
    log_decay: Tensor | None,
    state: LinearState | None,
) -> Sums:
    work, rows = work_dtype(value), key.shape[2]
    length = min(CHUNK, rows)
    ones = value.new_ones((*value.shape[:-1], 1), dtype=work)
    told, brought = cut(key.to(work), length), cut(torch.cat([value.to(work), ones], -1), length)
    # (batch, kv_heads, chunks, query heads of the group, rows, features)
    asked = cut(_by_kv_head(query.to(work), key), length).transpose(2, 3)
    factors = factors_of(log_gain, offset, log_decay, state, rows, length)

    before = empty_state(key, value, has_gain=log_gain is not None) if state is None else state
    parts = _times(told, factors.to_end).transpose(-1, -2) @ brought
    states = summed(torch.cat([_joined(before).unsqueeze(2), parts], 2), factors)
    later = torch.ones(length, length, dtype=torch.bool, device=key.device).triu(1)
    scores = _of_all_heads(asked, told.transpose(-1, -2)).masked_fill(later, 0.0)
    if factors.inside is not None:
        scores = scores * factors.inside.unsqueeze(3)
    read = _of_all_heads(asked, states[:, :, :-1])
    if factors.from_state is not None:
        read = _times(read, factors.from_state.unsqueeze(3))
    found = (_of_all_heads(scores, brought) + read).transpose(2, 3)
    found = found.reshape(*query.shape[:2], told.shape[2] * length, found.shape[-1])[:, :, :rows]

    # Copies: the states of all chunks would be kept with them.
    sums, normaliser = states[:, :, -1, :, :-1].clone(), states[:, :, -1, :, -1].clone()
    scale = sums.new_zeros(key.shape[:2])
    if log_gain is not None and offset is not None:
        scale = row_scales(offset, log_gain, state)[..., -1]
    return _apart(found, LinearState(sums, normaliser, scale))


def _by_kv_head(query: Tensor, key: Tensor) -> Tensor:
    """Return queries as (batch, kv_heads, query heads of the group, q_len, features)."""
    batch, q_heads, q_len, width = query.shape
    kv_heads = key.shape[1]
    return query.reshape(batch, kv_heads, q_heads // max(kv_heads, 1), q_len, width)


def _of_all_heads(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply (…, heads, rows, a) by one matrix (…, a, b) for all heads, which is not copied."""
    found = rows.flatten(3, 4) @ matrix
    return found.reshape(*rows.shape[:-1], matrix.shape[-1])


def _times(tensor: Tensor, factor: Tensor | None) -> Tensor:
    return tensor if factor is None else tensor * factor.unsqueeze(-1)


def _joined(state: LinearState) -> Tensor:
    """Return sums and normaliser side by side, (batch, kv_heads, features, value_dim + 1)."""
    return torch.cat([state.sums, state.normaliser.unsqueeze(-1)], -1)


def _apart(found: Tensor, state: LinearState) -> Sums:
    """Take values and divisors of (batch, q_heads, q_len, value_dim + 1) apart."""
    return Sums(found[..., :-1], found[..., -1], state)

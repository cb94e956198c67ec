"""The factors that are taken out of sums so that nothing overflows, in natural logs.

The factor of a row is the largest that any of its terms has: of the keys it sees, and of the state.
It is never that of the future, of padding, or of another sample or head. In float64, because the
log of a decay grows with the distance. Factors cancel, so they carry no gradient.
"""

import torch
from torch import Tensor

from headwise.ops.linear.state import LinearState

NOTHING = float("-inf")


@torch.no_grad()
def causal_offset(log_gain: Tensor, log_decay: Tensor | None, state: LinearState | None) -> Tensor:
    """Return minus the log of the factor of every row, (batch, kv_heads, length).

    It is 0 for a row that sees nothing.

    Args:
        log_gain: (batch, kv_heads, length).
        log_decay: (kv_heads,).
        state: Stands right before the first row.
    """
    exponents, behind = log_gain.double(), None if state is None else state.log_scale.double()
    faded = None if log_decay is None else _faded(log_decay, log_gain.shape[-1])
    if faded is not None:
        exponents = exponents - faded
    if log_gain.shape[-1]:
        exponents = exponents.cummax(-1).values
    if behind is not None:
        behind = behind if log_decay is None else behind + log_decay.double()
        exponents = exponents.maximum(behind.unsqueeze(-1))
    return -without_nothing(exponents if faded is None else exponents + faded).to(log_gain.dtype)


@torch.no_grad()
def row_scales(offset: Tensor, log_gain: Tensor, state: LinearState | None) -> Tensor:
    """Return the log of the factor of every row, which is also that of the state behind it.

    They are the numbers in ``offset`` to the last bit, (batch, kv_heads, length); ``-inf`` where
    nothing was seen.
    """
    seen = (log_gain > NOTHING).cumsum(-1) > 0
    if state is not None:
        seen = seen | (state.log_scale > NOTHING).unsqueeze(-1)
    return (-offset).masked_fill(~seen, NOTHING)


@torch.no_grad()
def whole_scale(log_gain: Tensor, log_decay: Tensor | None, state: LinearState | None) -> Tensor:
    """Return the log of the factor of the state behind all keys, (batch, kv_heads).

    It is ``-inf`` where nothing was seen.
    """
    length = log_gain.shape[-1]
    exponents = log_gain.double()
    behind = log_gain.new_full(log_gain.shape[:-1], NOTHING) if state is None else state.log_scale
    behind = behind.double()
    if log_decay is not None:
        exponents = exponents + _faded(log_decay, length).flip(-1)
        behind = behind + length * log_decay.double()
    found = behind.maximum(exponents.amax(-1)) if length else behind
    return found.to(log_gain.dtype)


def without_nothing(log_scale: Tensor) -> Tensor:
    """Return scales with 0 in place of ``-inf``, to be subtracted."""
    return log_scale.masked_fill(log_scale == NOTHING, 0.0)


def _faded(log_decay: Tensor, length: int) -> Tensor:
    """Return the log of what is left after 0, 1, … steps, (kv_heads, length), in float64."""
    steps = torch.arange(length, device=log_decay.device, dtype=torch.float64)
    return log_decay.double().unsqueeze(-1) * steps

"""What keys, rows and states of chunks are multiplied by: decays and gains, none above 1."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.ops.linear.scales import NOTHING, row_scales, without_nothing
from headwise.ops.linear.state import LinearState


class Factors(NamedTuple):
    """The factors of one call; ``None`` = 1, and leading dimensions of 1 are the same for all.

    Attributes:
        inside: (batch, kv_heads, chunks, length, length), from a key to a row of its chunk; 0 for
            later keys.
        from_state: (batch, kv_heads, chunks, length), from the state before a chunk to its rows.
        to_end: (batch, kv_heads, chunks, length), from a key to the state behind its chunk.
        between: What says how much is left of a state when one of the following chunks ends, by
            their distance and their scales; ``None`` = all of it.
    """

    inside: Tensor | None
    from_state: Tensor | None
    to_end: Tensor | None
    between: "Between | None"


class Between(NamedTuple):
    """What tells states apart: ends of chunks, and scales of the states there.

    Attributes:
        ends: (chunks + 1,), the last row before the first chunk, and of each.
        scales: (batch, kv_heads, chunks + 1) in float64, ``-inf`` for nothing; ``None`` = 0.
        log_decay: (kv_heads,) in float64.
    """

    ends: Tensor
    scales: Tensor | None
    log_decay: Tensor | None

    def kept(self, step: int) -> Tensor:
        """Return what is left of each state ``step`` chunks later, (batch, kv_heads, …)."""
        exponents: Tensor | None = None
        if self.log_decay is not None:
            exponents = self.log_decay.unsqueeze(-1) * (self.ends[step:] - self.ends[:-step])
            exponents = exponents.unsqueeze(0)
        if self.scales is not None:
            change = self.scales[..., :-step] - without_nothing(self.scales[..., step:])
            exponents = change if exponents is None else exponents + change
        assert exponents is not None
        return exponents.exp()


def cut(tensor: Tensor, length: int, fill: float = 0.0) -> Tensor:
    """Cut the rows (dimension -2) to chunks, with ``fill`` behind the last row."""
    rows, width = tensor.shape[-2:]
    count = (rows + length - 1) // length
    if count * length != rows:
        tensor = pad(tensor, (0, 0, 0, count * length - rows), value=fill)
    return tensor.reshape(*tensor.shape[:-2], count, length, width)


def factors_of(
    log_gain: Tensor | None,
    offset: Tensor | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    rows: int,
    length: int,
) -> Factors:
    """Return the factors of chunks of ``length`` rows; arguments are those of the call."""
    if log_gain is None and log_decay is None:
        return Factors(None, None, None, None)
    some = log_gain if log_gain is not None else log_decay
    assert some is not None
    count = (rows + length - 1) // length
    place = torch.arange(length, device=some.device)
    gap = place.unsqueeze(-1) - place
    ends = (torch.arange(count + 1, device=some.device) * length).clamp(max=rows) - 1
    left = (ends[1:, None] - (ends[:-1, None] + 1) - place).clamp(min=0)
    inside = from_state = to_end = scales = None
    if log_decay is not None:
        steps = log_decay[:, None, None]
        inside = (log_decay[:, None, None, None] * gap).unsqueeze(0)
        from_state = (steps * (place + 1)).unsqueeze(0)
        to_end = (steps * left).unsqueeze(0)
    if log_gain is not None and offset is not None:
        first = log_gain.new_full((*log_gain.shape[:2], 1), NOTHING)
        if state is not None:
            first = state.log_scale.unsqueeze(-1)
        scales = torch.cat([first, row_scales(offset, log_gain, state)[..., ends[1:]]], -1)
        gains = cut(log_gain.unsqueeze(-1), length, NOTHING).squeeze(-1)
        offsets = cut(offset.unsqueeze(-1), length, NOTHING).squeeze(-1)
        # Sums of two numbers near each other first: the distance is small beside them.
        inside = _plus(gains.unsqueeze(-2) + offsets.unsqueeze(-1), inside)
        from_state = _plus(scales[..., :-1, None] + offsets, from_state)
        to_end = _plus(gains - without_nothing(scales[..., 1:, None]), to_end)
        scales = scales.double()
    assert inside is not None
    assert from_state is not None
    assert to_end is not None
    return Factors(
        inside.masked_fill(gap < 0, NOTHING).exp(),
        from_state.exp(),
        to_end.exp(),
        Between(ends, scales, None if log_decay is None else log_decay.double()),
    )


def summed(states: Tensor, factors: Factors) -> Tensor:
    """Return the state behind every chunk, with all before it.

    Args:
        states: (batch, kv_heads, chunks + 1, features, value_dim + 1): the state before the first
            chunk, and what each adds.
        factors: Those of the call.
    """
    if factors.between is None:
        return states.cumsum(2)
    step, count = 1, states.shape[2]
    while step < count:
        share = factors.between.kept(step).to(states.dtype)[..., None, None]
        reached = states[:, :, step:] + states[:, :, :-step] * share
        states = torch.cat([states[:, :, :step], reached], 2)
        step *= 2
    return states


def _plus(exponents: Tensor, more: Tensor | None) -> Tensor:
    return exponents if more is None else exponents + more

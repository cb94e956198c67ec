"""Numbers that are not finite: kept out of sums, and put back for the rows that see them.

A NaN times a weight of 0 is NaN, so a matrix product would carry what a later token holds to
earlier rows, or to their gradients.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.ops.linear.call import LinearCall
from headwise.ops.linear.scales import NOTHING
from headwise.ops.linear.state import LinearState


class Marks(NamedTuple):
    """0 where everything is finite and NaN where not, to be added.

    Attributes:
        output: (batch, q_heads, q_len, value_dim).
        sums: (batch, kv_heads, 1, value_dim).
        normaliser: (batch, kv_heads, 1).
    """

    output: Tensor
    sums: Tensor
    normaliser: Tensor

    def on_state(self, state: LinearState) -> LinearState:
        """Return a state with what its keys and values left behind."""
        return LinearState(
            state.sums + self.sums, state.normaliser + self.normaliser, state.log_scale
        )


@torch.no_grad()
def marks_of(call: LinearCall) -> Marks:
    """Return which rows and which part of the state see a number that is not finite."""
    work = torch.promote_types(call.value.dtype, torch.float32)
    rows, tokens = (_mark(each).sum(-1, dtype=work) for each in (call.query, call.key))
    if call.log_gain is not None:
        tokens = tokens + _mark(call.log_gain.masked_fill(call.log_gain == NOTHING, 0.0))
    values = _mark(call.value).to(work) + tokens.unsqueeze(-1)
    q_len, kv_len = call.query.shape[2], call.key.shape[2]
    everything = values.sum(2, keepdim=True)
    seen = everything
    if call.causal:
        before = values.new_zeros((*values.shape[:2], max(q_len - kv_len, 0), values.shape[3]))
        seen = torch.cat([before, values.cumsum(2)[:, :, max(kv_len - q_len, 0) :]], 2)
    seen = seen.repeat_interleave(call.group, 1)
    return Marks(seen + rows.unsqueeze(-1), everything, tokens.sum(2, keepdim=True))


def without(call: LinearCall) -> LinearCall:
    """Return the call with 0 in place of what is not finite; it has no gradient."""
    log_gain = call.log_gain
    if log_gain is not None:
        log_gain = log_gain.masked_fill(~log_gain.isfinite(), NOTHING)
    return call._replace(
        query=call.query.nan_to_num(0.0, 0.0, 0.0),
        key=call.key.nan_to_num(0.0, 0.0, 0.0),
        value=call.value.nan_to_num(0.0, 0.0, 0.0),
        log_gain=log_gain,
    )


def _mark(numbers: Tensor) -> Tensor:
    return numbers.detach() * 0.0

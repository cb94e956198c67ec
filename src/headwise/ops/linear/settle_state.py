"""Checks the state that a call goes on from."""

import torch
from torch import Tensor

from headwise._checks import refuse_dtypes, refuse_shapes
from headwise.ops.linear.features import Features
from headwise.ops.linear.looks import can_be_looked_at
from headwise.ops.linear.state import LinearState, unscaled, work_dtype


def settle_state(
    caller: str, state: LinearState, features: Features, value: Tensor, lead: torch.Size
) -> LinearState:
    """Return a state with one batch dimension, or refuse it.

    Where the features of the keys have no gain, no factor is taken out of the state either: it may
    come from a call that had gains, and the sums of this one have no place for its factor.

    Args:
        caller: Who asks.
        state: As it was given.
        features: Those of the keys, (batch, kv_heads, kv_len, features).
        value: (batch, kv_heads, kv_len, value_dim).
        lead: The leading dimensions of the call as it was given.
    """
    if not isinstance(state, LinearState) or not all(isinstance(t, Tensor) for t in state):
        raise TypeError(
            f"{caller}: state must be a LinearState, got {type(state).__name__}\n"
            "  hint: pass the state of the result of the call before"
        )
    heads, width = (*lead, value.shape[1]), features.values.shape[-1]
    wanted = ((*heads, width, value.shape[-1]), (*heads, width), heads)
    if tuple(tuple(part.shape) for part in state) != wanted:
        raise refuse_shapes(
            caller,
            f"the state must have the shapes {wanted[0]}, {wanted[1]} and {wanted[2]} here",
            "go on with the same batch, heads, feature map and value_dim",
            sums=state.sums,
            normaliser=state.normaliser,
            log_scale=state.log_scale,
            value=value,
        )
    work = work_dtype(value)
    if any(part.dtype != work or part.device != value.device for part in state):
        raise refuse_dtypes(
            caller,
            f"the state of a call in {value.dtype} must be {work} on {value.device}",
            "convert all three parts with .to(device, dtype)",
            sums=state.sums,
            normaliser=state.normaliser,
            log_scale=state.log_scale,
        )
    batch = lead.numel()
    sums, normaliser, log_scale = (part.reshape(batch, *part.shape[len(lead) :]) for part in state)
    settled = LinearState(sums, normaliser, log_scale.detach())
    if features.log_gain is not None:
        return settled
    if value.is_cpu and can_be_looked_at(*settled) and not bool(settled.log_scale.any()):
        return settled
    return unscaled(settled)


def restored(state: LinearState, lead: torch.Size) -> LinearState:
    """Return a state with the leading dimensions of the call."""
    return LinearState(*(part.reshape(*lead, *part.shape[1:]) for part in state))

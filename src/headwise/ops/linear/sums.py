"""Runs a call in one of its forms, all of which compute the same sums.

A form is a function ``linear_sums(query, key, value, *, log_gain, offset, log_decay, state,
causal) -> Sums``. Weights are ``query · key * exp(log_gain + distance * log_decay + offset)``,
where ``offset`` belongs to the row:

- ``query`` (batch, q_heads, q_len, features), ``key`` (batch, kv_heads, kv_len, features),
  ``value`` (batch, kv_heads, kv_len, value_dim); where ``causal``, both lengths are the same.
- ``log_gain`` (batch, kv_heads, kv_len) or ``None`` for 0; ``-inf`` for padding.
- ``offset`` (batch, kv_heads, q_len), see ``scales``; ``None`` without gains, and where not
  ``causal``: every row then has the factor of the state that is returned.
- ``log_decay`` (kv_heads,) or ``None`` for 0.
- ``state`` before the first row, or ``None``. Without gains its ``log_scale`` is 0, which
  ``settle_state`` sees to: a form need not look at it then.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor
from torch.nn.functional import pad

from headwise.ops.linear import not_finite
from headwise.ops.linear.absorb import absorbed
from headwise.ops.linear.call import LinearCall, divided
from headwise.ops.linear.looks import can_be_looked_at
from headwise.ops.linear.precision import without_autocast
from headwise.ops.linear.scales import NOTHING, causal_offset
from headwise.ops.linear.state import LinearState, Sums
from headwise.ops.softmax.weights import is_finite


@runtime_checkable
class Form(Protocol):
    """One way to compute the sums of a call."""

    def __call__(
        self,
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
        """Return values and divisors of every row, and the state behind the last key."""
        ...


def run(call: LinearCall, form: Form) -> tuple[Tensor, LinearState]:
    """Return the output, (batch, q_heads, q_len, value_dim), and the state after the last key.

    A key or value that is not finite leaves its mark in the state, whoever sees it, so the usual
    call is told from its results; one that cannot be looked at takes the careful way.
    """
    with without_autocast(call.query):
        # Elsewhere than on the CPU a look would wait for the device.
        seen = (call.query, call.key, call.value, call.log_gain)
        if call.query.is_cpu and can_be_looked_at(*seen):
            found = _sums(call, form)
            if _looks_finite(found):
                return _output(call, found), found.state
        marks = not_finite.marks_of(call)
        found = _sums(not_finite.without(call), form)
        return _output(call, found) + marks.output, marks.on_state(found.state)


def _output(call: LinearCall, found: Sums) -> Tensor:
    return divided(found.values, found.normaliser) if call.normalize else found.values


def _sums(call: LinearCall, form: Form) -> Sums:
    """Bring queries and keys to one length where it matters, and run the form."""
    query, key, value, log_gain, log_decay, causal, _, state = call
    if not causal:
        return form(
            query,
            key,
            value,
            log_gain=log_gain,
            offset=None,
            log_decay=None,
            state=state,
            causal=False,
        )
    ahead = key.shape[2] - query.shape[2]
    if ahead > 0:
        gains = None if log_gain is None else log_gain[..., :ahead]
        state = absorbed(
            key[:, :, :ahead],
            value[:, :, :ahead],
            log_gain=gains,
            log_decay=log_decay,
            state=state,
        )
        key, value = key[:, :, ahead:], value[:, :, ahead:]
        log_gain = None if log_gain is None else log_gain[..., ahead:]
    elif ahead < 0:
        key, value = (pad(each, (0, 0, -ahead, 0)) for each in (key, value))
        log_gain = None if log_gain is None else pad(log_gain, (-ahead, 0), value=NOTHING)
    offset = None if log_gain is None else causal_offset(log_gain, log_decay, state)
    return form(
        query,
        key,
        value,
        log_gain=log_gain,
        offset=offset,
        log_decay=log_decay,
        state=state,
        causal=True,
    )


def _looks_finite(found: Sums) -> bool:
    return all(is_finite(part) for part in (found.normaliser, *found.state[:2]))

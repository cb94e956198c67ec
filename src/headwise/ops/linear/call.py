"""One call of linear attention, checked and with its features taken."""

from typing import NamedTuple

from torch import Tensor

from headwise.ops.linear.state import LinearState


class LinearCall(NamedTuple):
    """A call with every default filled in; padded keys have features and values of 0.

    The last query stands beside the last key, and the state right before the first token.

    Attributes:
        query: (batch, q_heads, q_len, features).
        key: (batch, kv_heads, kv_len, features).
        value: (batch, kv_heads, kv_len, value_dim).
        log_gain: (batch, kv_heads, kv_len) in float32 or wider, a factor of every key; ``-inf``
            for padding. ``None`` = 0.
        log_decay: (kv_heads,) in float32 or wider; ``None`` = 0.
        causal: Whether later keys are hidden.
        normalize: Whether weights are divided by their sum.
        state: All tokens before. Its ``log_scale`` is 0 where ``log_gain`` is ``None``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    log_gain: Tensor | None
    log_decay: Tensor | None
    causal: bool
    normalize: bool
    state: LinearState | None

    @property
    def group(self) -> int:
        """Query heads that read one key/value head."""
        kv_heads = self.key.shape[1]
        return self.query.shape[1] // kv_heads if kv_heads else 0


def divided(values: Tensor, divisor: Tensor) -> Tensor:
    """Return values (…, width) by their divisors (…); 0 where a divisor is 0."""
    nothing = (divisor == 0).unsqueeze(-1)
    return (values / divisor.unsqueeze(-1).masked_fill(nothing, 1.0)).masked_fill(nothing, 0.0)

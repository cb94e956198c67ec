"""Values mixed by weights that are there already, by the rules of ``headwise.attend``."""

from collections.abc import Callable

from torch import Tensor

from headwise.ops import attention_weights
from headwise.ops.softmax.weights import is_finite
from headwise.patterns import Pattern
from headwise.patterns.content import is_traced

INFINITE = float("inf")


def weighed(kept: Tensor, value: Tensor, allowed: Callable[[], Tensor]) -> Tensor:
    """Return ``kept @ value``, where a number that is not finite reaches those who see it alone.

    Args:
        kept: (batch, heads, q_len, kv_len), the weights after dropout.
        value: (batch, heads, kv_len, value_dim).
        allowed: Says which pairs may meet; called where the values may hold such a number.
    """
    if not is_traced(value) and is_finite(value):
        return kept @ value
    seen, odd = allowed(), ~value.isfinite()

    def met(pairs: Tensor, numbers: Tensor) -> Tensor:
        return pairs.to(value.dtype) @ numbers.to(value.dtype) > 0

    above, below = (met(kept > 0, value == bound) for bound in (INFINITE, -INFINITE))
    # NaN for those who see it, and infinity times a weight that is dropped or has vanished.
    lost = met(seen, value.isnan()) | met(seen & (kept == 0), value.isinf()) | (above & below)
    output = kept @ value.masked_fill(odd, 0.0)
    output = output.masked_fill(above, INFINITE).masked_fill(below, -INFINITE)
    return output.masked_fill(lost, float("nan"))


def seen_pairs(query: Tensor, key: Tensor, pattern: Pattern | None, bias: Tensor | None) -> Tensor:
    """Return which pairs have a weight, however small it is.

    Where all scores are 0 no weight can vanish.
    """
    if bias is not None:
        closed = bias == -INFINITE
        bias = bias.new_zeros(bias.shape).masked_fill(closed, -INFINITE)
    query, key = (t.new_zeros(*t.shape[:-1], 1) for t in (query, key))
    return attention_weights(query, key, pattern, bias=bias, q_offset=0) > 0

"""One call of low-rank attention with every default settled."""

from typing import NamedTuple

from torch import Tensor


class LowRankCall(NamedTuple):
    """A call whose tensors fit together; the projections have a column for every key.

    Attributes:
        query: (batch, q_heads, q_len, head_dim).
        key: (batch, kv_heads, kv_len, head_dim).
        value: (batch, kv_heads, kv_len, value_dim).
        key_projection: (rank, kv_len), or (kv_heads, rank, kv_len).
        value_projection: Likewise, with the same rank.
        padded: Which keys are padding, (batch or 1, kv_len); ``None`` = none.
        scale: Multiplier of the scores.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    key_projection: Tensor
    value_projection: Tensor
    padded: Tensor | None
    scale: float

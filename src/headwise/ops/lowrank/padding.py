"""Padded tokens are 0 before they are projected."""

from torch import Tensor


def cleared(key: Tensor, value: Tensor, padded: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return (batch, kv_heads, kv_len, …) with zeros at padding, whatever stood there."""
    if padded is None:
        return key, value
    hidden = padded[:, None, :, None]
    return key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)

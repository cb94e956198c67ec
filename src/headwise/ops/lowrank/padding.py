"""Padded tokens are 0 before they are projected."""

from torch import Tensor

from headwise.errors import PatternError
from headwise.patterns.dense import as_mask


def padding(caller: str, kv_mask: Tensor, key: Tensor) -> Tensor:
    """Return which keys are padding, (batch or 1, kv_len)."""
    real = as_mask(f"{caller}, kv_mask", kv_mask).to(key.device)
    lead, kv_len = key.shape[:-3], key.shape[-2]
    samples = lead.numel()
    if real.shape == (*lead, kv_len) or real.shape in ((samples, kv_len), (1, kv_len), (kv_len,)):
        return ~real.reshape(real.shape[:-1].numel(), kv_len)
    raise PatternError(
        f"{caller}: kv_mask must be (batch, kv_len), {(samples, kv_len)} here, "
        f"got {tuple(real.shape)}\n"
        "  hint: True = real token; pairs of queries and keys cannot be hidden from each other "
        "here, headwise.attend takes such a mask as Dense(mask)"
    )


def cleared(key: Tensor, value: Tensor, padded: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return (batch, kv_heads, kv_len, …) with zeros at padding, whatever stood there."""
    if padded is None:
        return key, value
    hidden = padded[:, None, :, None]
    return key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)

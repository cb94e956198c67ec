"""Calls of torch's ``scaled_dot_product_attention`` as calls of ``headwise.attend``."""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.patch.given import Given
from headwise.patch.sizes import Sizes, is_plain, spread
from headwise.patterns import Causal, Dense, Pattern

_CAUSAL = Causal()


class Translated(NamedTuple):
    """Arguments of ``headwise.attend``, whose first query stands at 0.

    Tensors have four dimensions; ``lead`` is what the result has in front of its last two, where
    that is another number of dimensions.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    pattern: Pattern | None
    bias: Tensor | None
    lead: Sizes | None


def translate(given: Given) -> Translated:
    """Return a call that has passed ``refusals`` in our terms."""
    query, key, value, mask = given[:4]
    lead: Sizes | None = None
    if not is_plain(given):
        found = spread(given)
        assert found is not None, "such sizes are refused"
        lead = found.lead
        padded = (1,) * (2 - len(lead)) + lead
        # Torch's result is contiguous here, and ours lies as the query does.
        query = _laid(query, padded).contiguous()
        key, value = (_laid(tensor, (*padded[:-1], found.kv_heads)) for tensor in (key, value))
        mask = None if mask is None else _laid_mask(mask, padded)
    elif mask is not None and mask.ndim == 3:
        mask = mask.unsqueeze(0)
    pattern: Pattern | None = None
    if given.is_causal:
        pattern = _CAUSAL
    elif mask is not None and mask.dtype is torch.bool:
        pattern, mask = Dense(mask), None
    return Translated(query, key, value, pattern, mask, lead)


def _laid(tensor: Tensor, lead: Sizes) -> Tensor:
    """Return (batch, heads, length, dim), a view where strides allow it."""
    whole = tensor.expand(*lead, *tensor.shape[-2:])
    return whole if len(lead) == 2 else whole.flatten(0, -4)


def _laid_mask(mask: Tensor, lead: Sizes) -> Tensor:
    """Return the mask with two dimensions, or four that broadcast to the call's."""
    if mask.ndim == 2:
        return mask
    whole = mask.reshape((1,) * (len(lead) + 2 - mask.ndim) + mask.shape)
    if all(size == 1 for size in whole.shape[:-3]):
        return whole.reshape(1, *whole.shape[-3:])
    spelled = whole.expand(*lead[:-1], *whole.shape[-3:])
    return spelled if len(lead) == 2 else spelled.flatten(0, -4)

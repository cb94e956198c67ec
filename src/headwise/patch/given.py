"""One call of torch's ``scaled_dot_product_attention``, as it was given."""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.ops.given_tensors import as_autocast


class Given(NamedTuple):
    """The arguments of one call, under torch's names and with torch's defaults."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False


def as_computed(given: Given) -> Given:
    """Return the call in the dtypes that autocast asks for, the mask's numbers included."""
    if not torch._C._is_any_autocast_enabled():
        return given
    query, key, value, mask = given[:4]
    if not all(isinstance(tensor, Tensor) for tensor in given[:3]):
        return given
    return given._replace(
        query=as_autocast(query),
        key=as_autocast(key),
        value=as_autocast(value),
        attn_mask=as_autocast(mask) if isinstance(mask, Tensor) else mask,
    )

"""Weights in the order that oneDNN reads, kept beside the originals as long as these live."""

from collections.abc import Mapping, MutableMapping
from functools import cache
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

_GOLDEN = (5**0.5 - 1) / 2


class _Packed(NamedTuple):
    weight: Tensor
    version: int
    storage: int
    nbytes: int
    sample: Tensor


_Copies = Mapping[tuple[object, ...], _Packed]

# For every weight, or the tensor that it is a view of: the packed copies of it, and of parts of it.
# A mapping is never changed, only replaced, for other threads may be reading it.
_kept: MutableMapping[Tensor, _Copies] = WeakTensorKeyDictionary()


def packed(weight: Tensor) -> Tensor:
    """Return the packed copy of a weight (outputs, inputs), made anew where the weight changed.

    A change is seen by torch's version counter, by another place in memory, or by a sample of the
    numbers, for writing through ``.data`` leaves the counter as it is. A view of a parameter, such
    as a third of packed projections, has a copy of its own that lives as long as the parameter.
    Views that overlap take no more than twice the parameter's memory: the oldest go.
    """
    owner = weight if weight._base is None else weight._base
    copies = _kept.get(owner, {})
    part = (weight.storage_offset(), *weight.shape, *weight.stride(), weight.dtype)
    known, version = copies.get(part), weight._version
    storage = weight.untyped_storage().data_ptr()
    if (
        known is not None
        and known.version == version
        and known.storage == storage
        and torch.equal(known.sample, _sample(weight))
    ):
        return known.weight
    ordered = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    others = {
        other: copy
        for other, copy in copies.items()
        if other != part and copy.version == version and copy.storage == storage
    }
    room = 2 * owner.nbytes - weight.nbytes
    while others and sum(copy.nbytes for copy in others.values()) > room:
        del others[next(iter(others))]
    found = _Packed(ordered, version, storage, weight.nbytes, _sample(weight).clone())
    _kept[owner] = {**others, part: found}
    return found.weight


def release(weight: Tensor) -> None:
    """Give back the copies of a weight, and of the tensor that it is a view of."""
    if _kept:
        _kept.pop(weight if weight._base is None else weight._base, None)


def release_packed(module: nn.Module) -> None:
    """Give back the packed copies of a module's weights.

    The next call in inference makes them anew. Training a weight gives back its copies, too, and so
    does deleting it.

    Example:
        >>> import torch, headwise as hw
        >>> layer = hw.MultiHeadAttention(64, 4).eval()
        >>> with torch.inference_mode():
        ...     out = layer(torch.randn(8, 100, 64))
        >>> hw.nn.release_packed(layer)
        >>> hw.nn.packed_bytes(layer)
        0
    """
    for tensor in (*module.parameters(), *module.buffers()):
        release(tensor)


def packed_bytes(module: nn.Module) -> int:
    """Return the bytes that packed copies of a module's weights take beside the weights.

    They are made by calls in inference with more than a few rows, and go when the weights go.

    Example:
        >>> import torch, headwise as hw
        >>> layer = hw.MultiHeadAttention(64, 4).eval()
        >>> hw.nn.packed_bytes(layer)
        0
    """
    tensors = [*module.parameters(), *module.buffers()]
    return sum(bytes_of(tensor) for tensor in tensors if tensor in _kept)


def bytes_of(weight: Tensor) -> int:
    """Return the bytes of the packed copies of one weight and of its parts."""
    return sum(
        int(torch.ops.mkldnn._nbytes(copy.weight)) for copy in _kept.get(weight, {}).values()
    )


def _sample(weight: Tensor) -> Tensor:
    """Return the bits of some numbers of a weight, of every row and every column."""
    step = _step(*(weight.shape if weight.is_contiguous() else weight.mT.shape))
    numbers = weight.as_strided(((weight.numel() + step - 1) // step,), (step,))
    return numbers.view(torch.int32 if weight.element_size() == 4 else torch.int16)


@cache
def _step(rows: int, columns: int) -> int:
    """Return a step through a matrix, row after row, that meets every row and every column.

    It is shorter than a row, and shares no factor with its length.
    """
    step = max(1, round(_GOLDEN * min(rows, columns)))
    while gcd(step, columns) > 1:
        step -= 1
    return step

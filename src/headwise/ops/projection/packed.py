"""Weights in the order that oneDNN reads, kept beside the originals as long as these live."""

from collections.abc import MutableMapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

# About so many numbers of a weight are compared before its copy is used again.
_SAMPLED = 1024
# Parts of one weight that have copies; the oldest goes when another comes.
_PARTS = 8
_GOLDEN = (5**0.5 - 1) / 2


class _Packed(NamedTuple):
    weight: Tensor
    version: int
    storage: int
    sample: Tensor


# For every weight, or the tensor that it is a view of: the packed copies of it, and of parts of it.
_kept: MutableMapping[Tensor, dict[tuple[object, ...], _Packed]] = WeakTensorKeyDictionary()


def packed(weight: Tensor) -> Tensor:
    """Return the packed copy of a weight (outputs, inputs), made anew where the weight changed.

    A change is seen by torch's version counter, by another place in memory, or by a sample of the
    numbers, for writing through ``.data`` leaves the counter as it is. A view of a parameter, such
    as a third of packed projections, has a copy of its own that lives as long as the parameter.
    """
    owner = weight if weight._base is None else weight._base
    copies = _kept.get(owner)
    if copies is None:
        copies = _kept[owner] = {}
    part = (weight.storage_offset(), *weight.shape, *weight.stride(), weight.dtype)
    known, version = copies.get(part), weight._version
    storage, sample = weight.untyped_storage().data_ptr(), _sample(weight)
    if (
        known is None
        or known.version != version
        or known.storage != storage
        or not torch.equal(known.sample, sample)
    ):
        copies.pop(part, None)
        stale = [
            other
            for other, copy in copies.items()
            if copy.storage != storage or copy.version != version
        ]
        for other in stale or list(copies)[: len(copies) + 1 - _PARTS]:
            del copies[other]
        ordered = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        known = copies[part] = _Packed(ordered, version, storage, sample.clone())
    return known.weight


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
    """Return the bits of about a thousand numbers of a weight, spread over rows and columns."""
    bits = weight.detach().view(torch.int32 if weight.element_size() == 4 else torch.int16)
    rows, columns = bits.shape
    if not bits.is_contiguous():
        return bits[:: max(1, rows // 32), :: max(1, columns // 32)]
    count = rows * columns
    step = _step(count // _SAMPLED, columns)
    return bits.as_strided(((count + step - 1) // step,), (step,))


@cache
def _step(apart: int, columns: int) -> int:
    """Return a step of about ``apart`` whose multiples meet all parts of rows and of columns.

    By the golden ratio: one that the length of a row nearly is a multiple of would meet the same
    columns over and over.
    """
    if apart >= columns:
        return apart // columns * columns + round(_GOLDEN * columns)
    return max(1, round(columns / (columns // max(apart, 1) + _GOLDEN)))

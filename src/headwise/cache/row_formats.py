"""How the rows of keys and values are written down: as numbers, or in 8 bits with a scale."""

from abc import ABC, abstractmethod
from typing import TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from headwise.errors import CacheError
from headwise.ops import StoredKeys

# Keys and values, and behind them the scales of both where there are any; each tensor begins with
# (batch, kv_heads, tokens).
Tensors: TypeAlias = tuple[Tensor, ...]

_PLAIN = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_LARGEST = 127


class RowFormat(ABC):
    """How tokens are turned into what is stored."""

    @property
    @abstractmethod
    def carries_gradients(self) -> bool:
        """Whether a gradient of what is stored is one of the tokens."""

    @abstractmethod
    def encode(self, key: Tensor, value: Tensor) -> Tensors:
        """Return what is stored of keys and values."""


class Numbers(RowFormat):
    """The numbers themselves, in a dtype of their own or, with ``None``, as they come."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._dtype = dtype

    @property
    @override
    def carries_gradients(self) -> bool:
        return True

    @override
    def encode(self, key: Tensor, value: Tensor) -> Tensors:
        if self._dtype is None:
            return key, value
        return key.to(self._dtype), value.to(self._dtype)


class EightBits(RowFormat):
    """Integers from -127 to 127 and one scale for each token and head, its largest number / 127.

    A row that holds NaN or infinity is read back as NaN.
    """

    @property
    @override
    def carries_gradients(self) -> bool:
        return False

    @override
    def encode(self, key: Tensor, value: Tensor) -> Tensors:
        (keys, key_scale), (values, value_scale) = _rounded(key), _rounded(value)
        return keys, values, key_scale, value_scale


def _rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    rows = rows.detach().float()
    if not rows.shape[-1]:
        return rows.to(torch.int8), rows.new_zeros(rows.shape[:-1])
    scale = rows.abs().amax(-1) / _LARGEST
    steps = (rows / scale.unsqueeze(-1)).nan_to_num_(0.0).round_()
    return steps.clamp_(-_LARGEST, _LARGEST).to(torch.int8), scale


def as_stored(tensors: Tensors, pages: Tensor | None = None, paged_len: int = 0) -> StoredKeys:
    """Return keys, values and scales under their names."""
    key, value, *scales = tensors
    key_scale, value_scale = scales or (None, None)
    return StoredKeys(key, value, key_scale, value_scale, pages, paged_len)


def row_format(dtype: torch.dtype | None) -> RowFormat:
    """Return the format that a cache's ``dtype`` asks for.

    Raises:
        CacheError: A dtype that rows cannot be stored in.
    """
    if dtype == torch.int8:
        return EightBits()
    if dtype is None or dtype in _PLAIN:
        return Numbers(dtype)
    raise CacheError(
        "KVCache: dtype must be torch.float32, torch.bfloat16, torch.float16, torch.float64, "
        f"torch.int8 or None, got {dtype!r}\n"
        "  hint: None stores keys and values in the dtype that they come in"
    )

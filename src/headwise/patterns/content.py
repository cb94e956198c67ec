"""Tensors inside patterns: a private copy that compares by content."""

from collections.abc import Sequence
from ctypes import string_at
from functools import cached_property
from hashlib import blake2b
from typing import Any, TypeAlias

import torch
from torch import Tensor

Numbers: TypeAlias = Tensor | Sequence[Any] | bool | int | float


class Content:
    """An immutable CPU copy of a tensor, equal to any other with the same shape and elements."""

    def __init__(self, numbers: Numbers, dtype: torch.dtype) -> None:
        source = as_tensor(numbers).detach()
        self.tensor = source.to("cpu", dtype, memory_format=torch.contiguous_format, copy=True)

    @cached_property
    def _key(self) -> tuple[tuple[int, ...], bytes]:
        data = string_at(self.tensor.data_ptr(), self.tensor.nbytes)
        return tuple(self.tensor.shape), blake2b(data, digest_size=32).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __getstate__(self) -> dict[str, Tensor]:
        """Leave the hash behind: another process hashes bytes otherwise."""
        return {"tensor": self.tensor}

    def __repr__(self) -> str:
        if self.tensor.numel() == 0 and self.tensor.ndim > 1:
            return f"torch.empty({tuple(self.tensor.shape)}, dtype={self.tensor.dtype})"
        return repr(self.tensor.tolist())

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return self.tensor.nbytes


def as_tensor(numbers: Numbers) -> Tensor:
    """Return a tensor as it is, and other numbers as a tensor on the CPU."""
    return numbers if isinstance(numbers, Tensor) else torch.as_tensor(numbers, device="cpu")

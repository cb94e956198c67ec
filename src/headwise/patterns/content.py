"""Tensors inside patterns: a private copy that compares by content."""

from collections.abc import Sequence
from ctypes import string_at
from functools import cached_property
from hashlib import blake2b
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from headwise._forks import alone_after_fork
from headwise.errors import PatternError

Numbers: TypeAlias = Tensor | Sequence[Any] | bool | int | float

PLAIN = (Tensor, nn.Parameter)


class Content:
    """An immutable CPU copy of a tensor, equal to any other with the same shape and elements.

    While a compiler or a transform traces, the numbers are not known yet: such a copy can be
    handed on, but neither compared nor hashed.
    """

    @alone_after_fork
    def __init__(self, numbers: Numbers, dtype: torch.dtype) -> None:
        source = as_tensor(numbers).detach()
        if type(source) is not Tensor and not is_traced(source):
            source = source.as_subclass(Tensor)
        self.tensor = source.to("cpu", dtype, memory_format=torch.contiguous_format, copy=True)

    @cached_property
    def _key(self) -> tuple[tuple[int, ...], bytes]:
        if is_traced(self.tensor):
            raise PatternError(
                "a pattern made of tensors that are being traced cannot be compared or hashed\n"
                "  hint: build it outside the compiled or transformed function to keep it"
            )
        data = string_at(self.tensor.data_ptr(), self.tensor.nbytes)
        return tuple(self.tensor.shape), blake2b(data, digest_size=32).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and (self is other or self._key == other._key)

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

    def on(self, device: torch.device) -> Tensor:
        """Return the numbers on the device of the positions that they are asked for."""
        return self.tensor if device.type == "cpu" else self.tensor.to(device)

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return self.tensor.nbytes


def as_tensor(numbers: object, caller: str = "a pattern") -> Tensor:
    """Return a tensor as it is, and other numbers as a tensor on the CPU."""
    if isinstance(numbers, Tensor):
        return numbers
    try:
        return torch.as_tensor(numbers, device="cpu")
    except (TypeError, ValueError, RuntimeError) as wrong:
        raise PatternError(
            f"{caller}: numbers must be a tensor, or lists of equal lengths, got {numbers!r:.200}\n"
            f"  hint: torch says: {wrong}"
        ) from None


def is_traced(tensor: Tensor) -> bool:
    """Say whether the numbers of a tensor cannot be looked at while this code runs."""
    return (
        torch.compiler.is_compiling()
        or torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python)
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        or torch._C._len_torch_dispatch_stack() > 0
        or tensor.is_meta
    )

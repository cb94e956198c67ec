"""Keys and values of one layer: the views, lengths and bookkeeping all storage kinds share."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.errors import CacheError


class State(NamedTuple):
    """Length and room of a storage at one time."""

    length: int
    key: Tensor | None
    value: Tensor | None


class Storage(ABC):
    """Keys and values of one layer, (batch, kv_heads, tokens, dim), of which ``length`` are real.

    The length is counted, never guessed from the contents; room that is not filled is never read.
    """

    def __init__(self) -> None:
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    @abstractmethod
    def _room(self, key: Tensor, value: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Return tensors with room for ``tokens`` that hold what is stored, or refuse."""

    @property
    def key(self) -> Tensor:
        """The stored keys, a view (batch, kv_heads, length, head_dim)."""
        return self._filled(self._key)

    @property
    def value(self) -> Tensor:
        """The stored values, a view (batch, kv_heads, length, value_dim)."""
        return self._filled(self._value)

    @property
    def is_made(self) -> bool:
        """Whether there is any room yet."""
        return self._key is not None

    @property
    def nbytes(self) -> int:
        """Memory held, the room not yet filled included, in bytes."""
        return sum(t.nbytes for t in (self._key, self._value) if t is not None)

    def append(self, key: Tensor, value: Tensor, *, tracked: bool = False) -> None:
        """Store further tokens; on a refusal nothing has changed.

        Args:
            key: New keys.
            value: New values.
            tracked: Autograd will keep what is stored for a backward pass, so that it may not be
                written to afterwards. Tokens that carry a gradient are tracked in any case.
        """
        self._check(key, value)
        end = self.length + key.shape[2]
        if torch.is_grad_enabled() and (
            tracked
            or any(t is not None and t.requires_grad for t in (key, value, self._key, self._value))
        ):
            self._key, self._value = self._joined(key, value)
        else:
            self._key, self._value = self._room(key, value, end)
            self._key[:, :, self.length : end] = key
            self._value[:, :, self.length : end] = value
        self.length = end

    @abstractmethod
    def _joined(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is stored and the new tokens as tensors that carry gradients, or refuse."""

    @property
    def state(self) -> State:
        """What ``restore`` brings back."""
        return State(self.length, self._key, self._value)

    def restore(self, state: State) -> None:
        """Go back to an earlier state, from before tokens were appended."""
        self.length, self._key, self._value = state

    def forget(self) -> None:
        """Hold nothing, and give back the room unless it never moves."""
        self.restore(State(0, None, None))

    def crop(self, length: int) -> None:
        """Keep the first ``length`` tokens; more than there are keeps all."""
        self.length = min(self.length, length)

    @abstractmethod
    def reorder(self, index: Tensor) -> None:
        """Let sample ``i`` become what sample ``index[i]`` was."""

    def _filled(self, tensor: Tensor | None) -> Tensor:
        if tensor is None:
            raise CacheError(
                "KVCache: nothing has been stored in this layer yet\n"
                "  hint: give key and value in the first call"
            )
        return tensor[:, :, : self.length]

    def _check(self, key: Tensor, value: Tensor) -> None:
        if key.ndim != 4 or value.ndim != 4 or key.shape[:3] != value.shape[:3]:
            raise CacheError(
                "KVCache: key and value must be (batch, kv_heads, length, dim) and agree in the "
                f"first three, got {tuple(key.shape)} and {tuple(value.shape)}\n"
                "  hint: give each sample a leading dimension, even a single one"
            )
        for name, new, old in (("key", key, self._key), ("value", value, self._value)):
            if old is None:
                continue
            fits = (*new.shape[:2], new.shape[3]) == (*old.shape[:2], old.shape[3])
            if not fits or new.dtype != old.dtype or new.device != old.device:
                kept = (*old.shape[:2], self.length, old.shape[3])
                raise CacheError(
                    f"KVCache: {name} must continue what is stored, {kept} {old.dtype} "
                    f"{old.device}, got {tuple(new.shape)} {new.dtype} {new.device}\n"
                    "  hint: one cache serves one batch of one model; reset() starts anew"
                )


def empty_like(tensor: Tensor, tokens: int) -> Tensor:
    """Allocate room for ``tokens`` that may be written inside and outside inference mode."""
    shape = (*tensor.shape[:2], tokens, tensor.shape[3])
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)

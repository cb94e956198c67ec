"""The sizes of a call and where its queries and keys stand."""

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor


class Offsets(TypedDict):
    """The keyword arguments that say where queries and keys stand."""

    q_offset: int | Tensor | None
    kv_offset: int | Tensor


@dataclass(frozen=True)
class Setting:
    """Sizes of a call and where its queries and keys stand; offsets are one per sample or one."""

    batch: int
    heads: int
    q_len: int
    kv_len: int
    q_offset: int | tuple[int, ...] | None = None
    kv_offset: int | tuple[int, ...] = 0

    def positions(self, sample: int) -> tuple[int, int]:
        """Return where the first query and the first key of a sample stand."""
        key = self.kv_offset if isinstance(self.kv_offset, int) else self.kv_offset[sample]
        if self.q_offset is None:
            return key + self.kv_len - self.q_len, key
        return (self.q_offset if isinstance(self.q_offset, int) else self.q_offset[sample]), key

    @property
    def offsets(self) -> Offsets:
        """The offsets as a caller writes them: an int, or a tensor with one per sample."""
        q_offset = None if self.q_offset is None else _written(self.q_offset)
        return {"q_offset": q_offset, "kv_offset": _written(self.kv_offset)}


def _written(offset: int | tuple[int, ...]) -> int | Tensor:
    return torch.tensor(offset) if isinstance(offset, tuple) else offset

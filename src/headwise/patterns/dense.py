"""The ways in for ready-made boolean tensors."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise._forks import alone_after_fork
from headwise.errors import PatternError
from headwise.patterns.base import Pattern
from headwise.patterns.content import Content, Numbers, as_tensor, is_traced
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import Intervals
from headwise.patterns.spans import COARSE, Reach, Runs, Spans, flagged, gathered

# More pieces of a mask than this are not kept as ranges.
_MANY = 16


@alone_after_fork
def as_mask(caller: str, mask: Numbers) -> Tensor:
    """Return a mask as booleans; numbers must all be 0 or 1, others are refused."""
    source = as_tensor(mask, caller)
    if source.dtype == torch.bool:
        return source
    if is_traced(source):
        raise PatternError(
            f"{caller}: a mask that is being traced must be boolean, got {source.dtype}\n"
            "  hint: its numbers cannot be checked there; pass mask != 0"
        )
    if source.is_complex() or not bool(((source == 0) | (source == 1)).all()):
        raise PatternError(
            f"{caller}: a mask must be boolean, or numbers that are all 0 or 1, "
            f"got {source.dtype} with other numbers\n"
            "  hint: True or 1 means may attend; numbers to add to the scores go into bias="
        )
    return source != 0


@dataclass(frozen=True)
class KeyMask(Pattern):
    """Padding on any side: keys marked ``False`` are seen by none.

    Args:
        mask: (batch, kv_len) or (kv_len,), ``True`` = real token; booleans, or 0 and 1. Its
            columns are the keys of the call, the first one at ``kv_offset``.

    Raises:
        PatternError: Another number of dimensions, numbers other than 0 and 1; when used, a call
            with another number of keys.
    """

    mask: Any
    _first_key: int = field(default=0, init=False, repr=False)

    _alike: ClassVar[tuple[int, ...]] = (1,)

    def __post_init__(self) -> None:
        if isinstance(self.mask, Content):
            return
        mask = as_mask("KeyMask", self.mask)
        if mask.ndim not in (1, 2):
            raise PatternError(
                f"KeyMask: mask must be (batch, kv_len) or (kv_len,), got {tuple(mask.shape)}\n"
                "  hint: a mask over pairs of queries and keys is Dense(mask)"
            )
        object.__setattr__(self, "mask", Content(mask, torch.bool))

    @property
    @override
    def batch_size(self) -> int | None:
        return self.mask.tensor.shape[0] if self.mask.tensor.ndim == 2 else None

    @property
    @override
    def nbytes(self) -> int:
        held: int = self.mask.nbytes
        return held

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        mask = self.mask.tensor
        return self if mask.ndim == 1 else KeyMask(mask[batch if mask.shape[0] > 1 else 0])

    @override
    def placed(self, grid: Grid) -> Pattern:
        keys = self.mask.tensor.shape[0]
        if keys != grid.kv_len:
            raise PatternError(
                f"KeyMask: the mask must have one entry per key, got {keys} for "
                f"{grid.kv_len} keys\n"
                "  hint: cut or extend the mask yourself, cached keys included"
            )
        found = KeyMask(self.mask)
        object.__setattr__(found, "_first_key", grid.kv_offset)
        return found

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        seen: Allowed = self.mask.on(kv_pos.device)[kv_pos - self._first_key]
        return seen & torch.ones_like(q_pos, dtype=torch.bool)

    @override
    def reach(self, runs: Runs) -> Reach:
        return self._reach

    @override
    def row(self, position: int) -> Intervals | None:
        return self._pieces

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        return key.unsqueeze(1)

    @cached_property
    def _pieces(self) -> Intervals | None:
        """Where the real keys stand; ``None`` where they fall into many pieces."""
        low, high = flagged(self.mask.tensor.unsqueeze(0))
        if low.shape[1] > _MANY:
            return None
        edges = zip(
            (low + self._first_key)[0].tolist(), (high + self._first_key)[0].tolist(), strict=True
        )
        return tuple(edges)

    @cached_property
    def _reach(self) -> Reach:
        flags = self.mask.tensor.unsqueeze(0)
        return _coarse(flags, flags, self._first_key)


@dataclass(frozen=True)
class Dense(Pattern):
    """A mask spelled out for one call.

    Args:
        mask: (q_len, kv_len), or four dimensions that broadcast to (batch, heads, q_len, kv_len);
            ``True`` = may attend; booleans, or 0 and 1. Its rows and columns are the queries and
            keys of the call, wherever they stand. Three dimensions are refused as ambiguous.

    Raises:
        PatternError: Another number of dimensions, numbers other than 0 and 1; when used, a call
            with other sizes.
    """

    mask: Any
    _first: tuple[int, int] = field(default=(0, 0), init=False, repr=False)

    _alike: ClassVar[tuple[int, ...]] = (2,)

    def __post_init__(self) -> None:
        if isinstance(self.mask, Content):
            return
        mask = as_mask("Dense", self.mask)
        if mask.ndim not in (2, 4):
            raise PatternError(
                f"Dense: mask must be (q_len, kv_len) or four dimensions that broadcast to "
                f"(batch, heads, q_len, kv_len), got {tuple(mask.shape)}\n"
                "  hint: say which axis is missing with mask[:, None] or mask[None]; "
                "a padding mask (batch, kv_len) is KeyMask(mask), in a layer kv_mask="
            )
        object.__setattr__(self, "mask", Content(mask, torch.bool))

    @property
    @override
    def batch_size(self) -> int | None:
        return self.mask.tensor.shape[0] if self.mask.tensor.ndim == 4 else None

    @property
    @override
    def num_heads(self) -> int | None:
        return self.mask.tensor.shape[1] if self.mask.tensor.ndim == 4 else None

    @property
    @override
    def nbytes(self) -> int:
        held: int = self.mask.nbytes
        return held

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        mask = self.mask.tensor
        if mask.ndim == 2:
            return self
        return Dense(mask[batch if mask.shape[0] > 1 else 0, head if mask.shape[1] > 1 else 0])

    @override
    def placed(self, grid: Grid) -> Pattern:
        rows, columns = self.mask.tensor.shape
        if rows not in (1, grid.q_len) or columns not in (1, grid.kv_len):
            raise PatternError(
                f"Dense: the mask must broadcast to {grid.q_len} queries and {grid.kv_len} keys, "
                f"got {rows} and {columns}\n"
                "  hint: cut the mask to the call; a mask over keys alone is KeyMask(mask), "
                "in a layer kv_mask="
            )
        spelled = self.mask.tensor.expand(grid.q_len, grid.kv_len)
        found = Dense(spelled)
        object.__setattr__(found, "_first", (grid.q_offset, grid.kv_offset))
        return found

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        mask = self.mask.on(q_pos.device)
        # An axis of 1 speaks of all queries or keys.
        row, column = (
            (position - first) * int(size > 1)
            for position, first, size in zip((q_pos, kv_pos), self._first, mask.shape, strict=True)
        )
        seen: Allowed = mask[row, column]
        return seen

    @override
    def reach(self, runs: Runs) -> Reach:
        row, column = self._first
        kept = (runs.every() - row).clamp(0, max(len(self.mask.tensor) - 1, 0))
        some, every = torch.zeros(
            2, len(kept), self.mask.tensor.shape[1], dtype=torch.bool, device="cpu"
        )
        for number, rows in enumerate(kept):
            seen = self.mask.tensor[rows]
            some[number], every[number] = seen.any(0), seen.all(0)
        return _coarse(some, every, column)


def _coarse(some: Tensor, every: Tensor, first: int) -> Reach:
    """Return the ranges in which flags (runs, keys) are set, without small gaps and small pieces.

    A mask full of holes would otherwise fall into as many ranges as it has keys.
    """
    maybe, sure = flagged(some, COARSE), flagged(every)
    keys = every.shape[1]
    small = (sure.high - sure.low < COARSE) & (sure.low > 0) & (sure.high < keys)
    kept = gathered(sure.low, torch.where(small, sure.low, sure.high))
    return Reach(_shifted(maybe, first), _shifted(kept, first))


def _shifted(found: Spans, by: int) -> Spans:
    return Spans(found.low + by, found.high + by)

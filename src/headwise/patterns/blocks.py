"""Patterns over blocks of neighbouring tokens: windows of blocks, blocks at both ends."""

from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor
from typing_extensions import override

from headwise._checks import is_int
from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns import intervals
from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import FAR, Intervals, normalise
from headwise.patterns.spans import EVERYTHING, Reach, Runs, between, constant, union, where
from headwise.patterns.tiles import KEY_TILE, QUERY_TILE, tile_gaps


def check_count(
    kind: str, name: str, count: object, least: int, hint: str, most: int = FAR
) -> None:
    """Refuse what is no int from ``least`` to ``most``."""
    if not is_int(count) or count < least:  # type: ignore[operator]
        raise PatternError(
            f"{kind}: {name} must be an int of at least {least}, got {count!r}\n  hint: {hint}"
        )
    if count > most:  # type: ignore[operator]
        raise PatternError(f"{kind}: {name} must be at most {most}, got {count}\n  hint: {hint}")


@dataclass(frozen=True)
class BlockWindow(Pattern):
    """A query sees its own block of tokens, and neighbouring blocks.

    Blocks are counted from position 0.

    Args:
        block: Tokens in a block.
        left: Blocks before the query's, its own not counted; ``None`` = no bound.
        right: Blocks after the query's, its own not counted; ``None`` = no bound.

    Raises:
        PatternError: A block below 1 or a negative count.

    Example:
        >>> print(BlockWindow(2, 1, 0).draw(6, 6))
        ■■····
        ■■····
        ■■■■··
        ■■■■··
        ··■■■■
        ··■■■■
    """

    block: int
    left: int | None
    right: int | None

    def __post_init__(self) -> None:
        check_count("BlockWindow", "block", self.block, 1, "64 tokens are usual")
        for name, count in (("left", self.left), ("right", self.right)):
            if count is not None:
                check_count("BlockWindow", name, count, 0, "None has no bound", 2**63 - 1)

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        gap, (left, right) = kv_pos // self.block - q_pos // self.block, self._bounds
        seen: Allowed = (gap >= -left) & (gap <= right)
        return seen

    @override
    def reach(self, runs: Runs) -> Reach:
        first, last, (left, right) = runs.first // self.block, runs.last // self.block, self._bounds
        return Reach(
            between((first - left) * self.block, (last + right + 1) * self.block),
            between((last - left) * self.block, (first + right + 1) * self.block),
        )

    @override
    def row(self, position: int) -> Intervals | None:
        block, (left, right) = position // self.block, self._bounds
        return (((block - left) * self.block, (block + right + 1) * self.block),)

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        edges = [] if self.left is None else [-self.left - 1, -self.left]
        edges += [] if self.right is None else [self.right, self.right + 1]
        lowest, highest = min(edges, default=0) * self.block, max(edges, default=0) * self.block
        gaps = tile_gaps(query, key, lowest, highest)
        return torch.cat([gaps, (query % self.block).unsqueeze(1)], 1)

    @property
    def _bounds(self) -> tuple[int, int]:
        """Return how many blocks back and ahead a query sees."""
        most = FAR // self.block
        left = most if self.left is None else min(self.left, most)
        return left, most if self.right is None else min(self.right, most)


@dataclass(frozen=True)
class GlobalBlocks(Pattern):
    """The first and the last blocks of a sequence see every key and are seen by every query.

    Args:
        block: Tokens in a block, counted from position 0.
        first: Blocks at the start.
        last: Blocks at the end; the very last one may be cut short.
        length: Tokens of the sequence; ``None`` = up to the last key of the call, which moves the
            end while a cache grows.

    Raises:
        PatternError: A block below 1 or a negative count.

    Example:
        >>> print(GlobalBlocks(2, 1, 0).draw(4, 4))
        ■■■■
        ■■■■
        ■■··
        ■■··
    """

    block: int
    first: int
    last: int
    length: int | None = None
    _end: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_count("GlobalBlocks", "block", self.block, 1, "64 tokens are usual")
        check_count("GlobalBlocks", "first", self.first, 0, "1 is usual")
        check_count("GlobalBlocks", "last", self.last, 0, "1 is usual")
        if self.length is not None:
            check_count("GlobalBlocks", "length", self.length, 0, "None takes the call's")

    @override
    def placed(self, grid: Grid) -> Pattern:
        found = GlobalBlocks(self.block, self.first, self.last, self.length)
        end = grid.kv_offset + grid.kv_len if self.length is None else self.length
        object.__setattr__(found, "_end", end)
        return found

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        end = self._end if self._end is not None else length_of(self.length, q_pos, kv_pos)
        return self._chosen(q_pos, end) | self._chosen(kv_pos, end)

    def _chosen(self, position: Positions, end: int) -> Allowed:
        seen = torch.zeros_like(position, dtype=torch.bool)
        for low, high in self._ranges(end):
            seen = seen | ((position >= low) & (position < high))
        return seen

    def _ranges(self, end: int) -> Intervals:
        blocks = -(-end // self.block)
        return normalise(
            [
                (0, min(self.first * self.block, end)),
                (max(blocks - self.last, 0) * self.block, end),
            ]
        )

    @override
    def reach(self, runs: Runs) -> Reach:
        assert self._end is not None, "lowering places every pattern first"
        pieces = self._ranges(self._end)
        columns = constant(pieces)
        some = torch.zeros_like(runs.first, dtype=torch.bool)
        every = some.clone()
        for low, high in pieces:
            some |= (runs.last >= low) & (runs.first < high)
            every |= (runs.first >= low) & (runs.last < high)
        return Reach(
            union(columns, where(some, EVERYTHING)), union(columns, where(every, EVERYTHING))
        )

    @override
    def row(self, position: int) -> Intervals | None:
        assert self._end is not None, "lowering places every pattern first"
        pieces = self._ranges(self._end)
        chosen = any(low <= position < high for low, high in pieces)
        return intervals.EVERYTHING if chosen else pieces

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        assert self._end is not None, "lowering places every pattern first"
        found = []
        for corner, size in ((query, QUERY_TILE), (key, KEY_TILE)):
            for edge in chain.from_iterable(self._ranges(self._end)):
                found.append((edge - corner).clamp(0, size))
        return torch.stack(found, 1) if found else query.new_zeros(len(query), 1)


def length_of(given: int | None, q_pos: Positions, kv_pos: Positions) -> int:
    """Return how long a sequence is: as given, else up to the last position asked for."""
    if given is not None:
        return given
    return 1 + max((int(pos.max()) for pos in (q_pos, kv_pos) if pos.numel()), default=-1)

"""Seeded links between blocks of tokens."""

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor
from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns.base import Pattern
from headwise.patterns.blocks import check_count, length_of
from headwise.patterns.cells import cell_kinds
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import NOTHING as NO_KEYS
from headwise.patterns.intervals import Intervals, normalise
from headwise.patterns.spans import Reach, Runs, gathered, where
from headwise.patterns.tiles import KEY_TILE, QUERY_TILE

_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class RandomBlocks(Pattern):
    """The queries of a block see ``count`` blocks of keys, drawn at random.

    The random part of BigBird ("Big Bird: Transformers for Longer Sequences", Zaheer et al.,
    2020). What is drawn follows from the fields and the length alone, on every machine.

    Args:
        block: Tokens in a block, counted from position 0.
        count: Blocks drawn for every block of queries, all different; all there are where there
            are fewer.
        seed: Number from which they are drawn, 0 or above.
        window_blocks: Blocks of a window around the query's, an odd number, that are not drawn.
        global_blocks: Blocks at the start and at the end that are not drawn; their own queries
            draw none.
        length: Tokens of the sequence drawn from; ``None`` = up to the last key of the call. While
            a cache grows that draws anew at every step, so decoding needs a length.

    Raises:
        PatternError: Numbers out of bounds.

    Example:
        >>> print(RandomBlocks(2, 1, seed=0).draw(6, 6))
        ■■····
        ■■····
        ····■■
        ····■■
        ··■■··
        ··■■··
    """

    block: int
    count: int
    seed: int
    window_blocks: int = 0
    global_blocks: int = 0
    length: int | None = None
    _end: int | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        kind = "RandomBlocks"
        check_count(kind, "block", self.block, 1, "64 tokens are usual")
        check_count(kind, "count", self.count, 0, "3 is usual")
        check_count(kind, "seed", self.seed, 0, "another number draws other blocks", 2**63 - 1)
        check_count(kind, "global_blocks", self.global_blocks, 0, "1 is usual")
        check_count(kind, "window_blocks", self.window_blocks, 0, "3 is usual")
        if self.window_blocks and self.window_blocks % 2 == 0:
            raise PatternError(
                f"{kind}: window_blocks must be odd, or 0, got {self.window_blocks}\n"
                "  hint: a window holds the query's own block and as many on both sides"
            )
        if self.length is not None:
            check_count(kind, "length", self.length, 0, "None takes the call's")

    @override
    def placed(self, grid: Grid) -> Pattern:
        return self._until(grid.kv_offset + grid.kv_len if self.length is None else self.length)

    def _until(self, end: int) -> "RandomBlocks":
        found = RandomBlocks(
            self.block, self.count, self.seed, self.window_blocks, self.global_blocks, self.length
        )
        object.__setattr__(found, "_end", end)
        return found

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        if self._end is None:
            return self._until(length_of(self.length, q_pos, kv_pos))._allows(q_pos, kv_pos)
        drawn = self._drawn.to(q_pos.device)[self._rows(q_pos)]
        real = (q_pos >= 0) & (q_pos < self._end) & (kv_pos >= 0) & (kv_pos < self._end)
        same = (kv_pos // self.block).unsqueeze(-1) == drawn
        seen: Allowed = same.any(-1) & real
        return seen

    @override
    def reach(self, runs: Runs) -> Reach:
        end, first, last = self._placed_end, self._rows(runs.first), self._rows(runs.last)
        steps = int((last - first).max()) + 1
        rows = torch.minimum(
            first.unsqueeze(1) + torch.arange(steps, device="cpu"), last.unsqueeze(1)
        )
        low = self._drawn[rows].flatten(1) * self.block
        # What was not drawn is -1, and so in front of everything.
        maybe = gathered(low.clamp(min=0), (low + self.block).clamp(0, end))
        inside = (first == last) & (runs.first >= 0) & (runs.last < end)
        return Reach(maybe, where(inside, maybe))

    @override
    def row(self, position: int) -> Intervals | None:
        if not 0 <= position < self._placed_end:
            return NO_KEYS
        drawn = [block for block in self._drawn[position // self.block].tolist() if block >= 0]
        return normalise(
            (block * self.block, min((block + 1) * self.block, self._placed_end)) for block in drawn
        )

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        end = self._placed_end
        ends = [(end - query).clamp(0, QUERY_TILE), (end - key).clamp(0, KEY_TILE)]

        def seen(rows: Tensor, columns: Tensor) -> Tensor:
            drawn = self._drawn[self._rows(rows * self.block)]
            seen = (drawn == columns.unsqueeze(-1)).any(-1)
            return seen & (rows >= 0) & (columns >= 0)

        return cell_kinds(query, key, (self.block, self.block), seen, ends)

    @property
    def _placed_end(self) -> int:
        assert self._end is not None, "lowering places every pattern first"
        return self._end

    def _rows(self, position: Tensor) -> Tensor:
        """Return the rows of ``_drawn`` that queries at these positions belong to."""
        return (position // self.block).clamp(0, max(len(self._drawn) - 1, 0))

    def _rows_drawn(self) -> list[list[int]]:
        """Return what ``_drawn`` holds, as plain numbers."""
        blocks = -(-self._placed_end // self.block)
        return _rows(blocks, self.count, self.seed, self.window_blocks, self.global_blocks)

    @property
    def _drawn(self) -> Tensor:
        """The blocks that were drawn for every block of queries, (blocks, count), -1 for none."""
        blocks = -(-self._placed_end // self.block)
        # A compiler looks through what is kept, and warns.
        table = _table.__wrapped__ if torch.compiler.is_compiling() else _table
        return table(blocks, self.count, self.seed, self.window_blocks, self.global_blocks)


@lru_cache(maxsize=16)
def _table(blocks: int, count: int, seed: int, window: int, ends: int) -> Tensor:
    rows = _rows(blocks, count, seed, window, ends)
    return torch.tensor(rows, dtype=torch.int64, device="cpu").view(len(rows), count)


def _rows(blocks: int, count: int, seed: int, window: int, ends: int) -> list[list[int]]:
    rows = [_draw(row, blocks, count, seed, window, ends) for row in range(max(blocks, 1))]
    return [row + [-1] * (count - len(row)) for row in rows]


def _draw(row: int, blocks: int, count: int, seed: int, window: int, ends: int) -> list[int]:
    """Draw without putting back, by Fisher and Yates, and never what is taken already."""
    if row < ends or row >= blocks - ends:
        return []
    half = window // 2
    low = max(row - half, ends)
    taken = max(min(row + half + 1, blocks - ends) - low, 0) if window else 0
    free = blocks - 2 * ends - taken
    moved: dict[int, int] = {}
    found = []
    for step in range(min(count, free)):
        place = step + _hashed(seed, row, step) % (free - step)
        chosen = moved.get(place, place) + ends
        moved[place] = moved.get(step, step)
        found.append(chosen if chosen < low else chosen + taken)
    return sorted(found)


def _hashed(seed: int, row: int, step: int) -> int:
    """Mix three numbers to 64 bits, as splitmix64 does (Steele, Lea and Flood, 2014)."""
    word = seed
    for number in (row, step):
        word = (word ^ number) + 0x9E3779B97F4A7C15 & _WORD
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
        word ^= word >> 31
    return word

"""From a pattern to the live tiles of a call, in time that follows the live tiles."""

from collections.abc import Iterator, Sequence
from ctypes import string_at

import torch
from torch import Tensor

from headwise.errors import PatternError
from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import (
    FAR,
    Interval,
    Intervals,
    between,
    covers,
    intersection,
    normalise,
)
from headwise.patterns.layout_cache import LayoutCache
from headwise.patterns.tiles import KEY_TILE, QUERY_TILE, TileLayout

# Partial tiles spelled out at a time: few enough that torch's operations on them stay on one
# thread, which also works in the child of a fork.
_CHUNK = 5
_NO_TILES = (FAR, FAR)


kept = LayoutCache()


def lower(pattern: Pattern, places: tuple[Grid, ...]) -> TileLayout | None:
    """Return the live tiles of a call, or ``None`` where every query sees every key.

    Args:
        pattern: Who may attend to whom.
        places: One grid for all samples, or one per sample.

    Raises:
        PatternError: The pattern does not fit the sizes or positions of the call.
    """
    key = (pattern, places)
    try:
        return kept.get(key)
    except KeyError:
        layout = _lowered(pattern.simplified(), places)
        kept.put(key, layout)
        return layout


def _lowered(pattern: Pattern, places: tuple[Grid, ...]) -> TileLayout | None:
    q_len, kv_len = places[0].q_len, places[0].kv_len
    samples = len(places) if pattern.batch_size in (None, 1) else pattern.batch_size
    heads = 1 if pattern.num_heads is None else pattern.num_heads

    numbers: dict[tuple[Pattern, Grid], int] = {}
    which = [
        [
            numbers.setdefault((pattern.sample(b, h), _place(places, b)), len(numbers))
            for h in range(heads)
        ]
        for b in range(samples)
    ]
    plains = [plain.placed(grid) for plain, grid in numbers]
    grids = [grid for _, grid in numbers]
    if all(_sees_all(plain, grid) for plain, grid in zip(plains, grids, strict=True)):
        return None

    collected = _Collected()
    starts = [collected.add(plain, grid) for plain, grid in zip(plains, grids, strict=True)]
    return TileLayout(
        q_len,
        kv_len,
        torch.tensor(which, dtype=torch.int32, device="cpu"),
        torch.tensor(starts, dtype=torch.int32, device="cpu").view(len(starts), -1),
        torch.tensor(collected.entries, dtype=torch.int32, device="cpu").view(-1, 3),
        torch.stack(collected.bitmaps)
        if collected.bitmaps
        else torch.zeros(0, KEY_TILE, dtype=torch.int64, device="cpu"),
    )


def check_sizes(caller: str, pattern: Pattern, batch: int, heads: int) -> None:
    """Refuse a pattern that tells apart another number of samples or heads than the call has."""
    for name, held, given in (
        ("samples", pattern.batch_size, batch),
        ("heads", pattern.num_heads, heads),
    ):
        if held is not None and held not in (1, given):
            raise PatternError(
                f"{caller}: the pattern must tell apart as many {name} as the call has, or 1, "
                f"got {held} for {given}\n  pattern  {pattern_name(pattern)}\n"
                f"  hint: build the pattern for the {name} of this call"
            )


def pattern_name(pattern: Pattern) -> str:
    """Return the ``repr`` of a pattern, cut to one line of a message."""
    if pattern.nbytes > 100:
        return f"{type(pattern).__name__}(…), {pattern.nbytes:,} bytes"
    text = repr(pattern)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _place(places: Sequence[Grid], batch: int) -> Grid:
    return places[batch if len(places) > 1 else 0]


def _sees_all(plain: Pattern, grid: Grid) -> bool:
    if not grid.q_len or not grid.kv_len:
        return True
    reach = plain.reach(grid.q_offset, grid.q_offset + grid.q_len - 1)
    return covers(reach.sure, grid.kv_offset, grid.kv_offset + grid.kv_len)


class _Collected:
    """Entries and bitmaps of all plain layouts; equal bitmaps are kept once."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int]] = []
        self.bitmaps: list[Tensor] = []
        self._numbers: dict[bytes, int] = {}

    def add(self, plain: Pattern, grid: Grid) -> list[int]:
        """Lower one plain layout; return where the entries of its query tiles start."""
        tiles = [list(_entries(plain, grid, first)) for first in range(0, grid.q_len, QUERY_TILE)]
        wanted = [
            (number * QUERY_TILE, key_tile * KEY_TILE)
            for number, tile in enumerate(tiles)
            for key_tile, _, partial in tile
            if partial
        ]
        found = iter(self._spell(plain, grid, wanted))
        starts = [len(self.entries)]
        for tile in tiles:
            for key_tile, count, partial in tile:
                bitmap = next(found) if partial else -1
                if bitmap is not None:
                    self.entries.append((key_tile, count, bitmap))
            starts.append(len(self.entries))
        return starts

    def _spell(
        self, plain: Pattern, grid: Grid, corners: list[tuple[int, int]]
    ) -> list[int | None]:
        """Return the bitmap of each partial tile, ``None`` where it turns out empty."""
        if not corners:
            return []
        if not plain.shift_invariant:
            return self._spell_each(plain, grid, corners)
        # Tiles at the same distance from the diagonal and cut the same way look alike.
        kinds: dict[tuple[int, int, int], int] = {}
        order = [
            kinds.setdefault(
                (
                    key - query,
                    min(grid.q_len - query, QUERY_TILE),
                    min(grid.kv_len - key, KEY_TILE),
                ),
                number,
            )
            for number, (query, key) in enumerate(corners)
        ]
        distinct = dict.fromkeys(order)
        spelled = self._spell_each(plain, grid, [corners[number] for number in distinct])
        known = dict(zip(distinct, spelled, strict=True))
        return [known[number] for number in order]

    def _spell_each(
        self, plain: Pattern, grid: Grid, corners: list[tuple[int, int]]
    ) -> list[int | None]:
        found: list[int | None] = []
        for start in range(0, len(corners), _CHUNK):
            bits = _bitmaps(
                plain, grid, torch.tensor(corners[start : start + _CHUNK], device="cpu")
            )
            live = (bits != 0).any(1).tolist()
            for row, is_live in zip(bits, live, strict=True):
                found.append(self._number(row) if is_live else None)
        return found

    def _number(self, bits: Tensor) -> int:
        key = string_at(bits.data_ptr(), bits.nbytes)
        if key not in self._numbers:
            self._numbers[key] = len(self.bitmaps)
            self.bitmaps.append(bits.clone())
        return self._numbers[key]


def _entries(plain: Pattern, grid: Grid, first: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (first key tile, how many, partial) for the queries of the tile at ``first``."""
    last = min(first + QUERY_TILE, grid.q_len) - 1
    reach = plain.reach(grid.q_offset + first, grid.q_offset + last)
    start, end = grid.kv_offset, grid.kv_offset + grid.kv_len
    keys = between(start, end)
    whole = [_whole_tiles(piece, start, end) for piece in intersection(reach.sure, keys)]
    full = iter([tiles for tiles in whole if tiles[0] < tiles[1]])
    low, high = next(full, _NO_TILES)
    for first_tile, last_tile in _touched_tiles(intersection(reach.maybe, keys), start):
        position = first_tile
        while position < last_tile:
            while high <= position:
                low, high = next(full, _NO_TILES)
            if low <= position:
                run = min(high, last_tile)
                yield position, run - position, False
                position = run
            else:
                yield position, 1, True
                position += 1


def _whole_tiles(piece: Interval, start: int, end: int) -> Interval:
    """Return the key tiles that lie wholly inside ``piece``; the last tile may be cut short."""
    low, high = piece[0] - start, piece[1] - start
    tiles = -(-high // KEY_TILE) if piece[1] == end else high // KEY_TILE
    return -(-low // KEY_TILE), tiles


def _touched_tiles(pieces: Intervals, start: int) -> Intervals:
    return normalise(
        ((low - start) // KEY_TILE, -(-(high - start) // KEY_TILE)) for low, high in pieces
    )


def _bitmaps(plain: Pattern, grid: Grid, corners: Tensor) -> Tensor:
    """Spell out tiles; pairs past the end of the call are forbidden. (tiles, KEY_TILE) int64."""
    query = corners[:, 0].view(-1, 1, 1) + torch.arange(QUERY_TILE, device="cpu").view(1, -1, 1)
    key = corners[:, 1].view(-1, 1, 1) + torch.arange(KEY_TILE, device="cpu").view(1, 1, -1)
    allowed = plain._allows(
        query.clamp(max=grid.q_len - 1) + grid.q_offset,
        key.clamp(max=grid.kv_len - 1) + grid.kv_offset,
    )
    allowed = allowed & (query < grid.q_len) & (key < grid.kv_len)
    powers = torch.arange(QUERY_TILE, device="cpu").view(1, -1, 1)
    return (allowed.to(torch.int64) << powers).sum(1)

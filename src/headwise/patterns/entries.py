"""Which tiles of a call are live: runs of full tiles, and partial ones with their bitmaps."""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.patterns import intervals
from headwise.patterns.base import Pattern
from headwise.patterns.bitmaps import EMPTY, FULL, Bitmaps
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import FAR, Intervals
from headwise.patterns.spans import Reach, Runs, Spans, between, complement, gathered, intersection
from headwise.patterns.tiles import KEY_TILE, QUERY_TILE


class Entries(NamedTuple):
    """The live tiles of one plain layout, as ``TileLayout`` keeps them.

    ``starts`` (query tiles + 1,) counts from the first of ``entries`` (entries, 3); int64 both.
    """

    starts: Tensor
    entries: Tensor


class _Runs(NamedTuple):
    """Runs of key tiles, (runs,) int64 each: whose they are, the first tile, behind the last."""

    owner: Tensor
    low: Tensor
    high: Tensor


def runs_of(grid: Grid) -> Runs:
    """Return the query tiles of a call as runs of queries."""
    first = torch.arange(0, grid.q_len, QUERY_TILE, device="cpu") + grid.q_offset
    last = (first + QUERY_TILE - 1).clamp(max=grid.q_offset + grid.q_len - 1)
    return Runs(first, last, grid.kv_offset, grid.kv_offset + grid.kv_len)


def of_tiles(plain: Pattern, grid: Grid, reach: Reach, bitmaps: Bitmaps) -> Entries:
    """Find the live tiles of every query tile among those that ``reach`` touches."""
    tiles = -(-grid.q_len // QUERY_TILE)
    keys = between(grid.kv_offset, grid.kv_offset + grid.kv_len)
    touched = _touched(intersection(reach.maybe, keys), grid)
    whole = _whole(intersection(reach.sure, keys), grid)
    full = _listed(whole, tiles)
    partial = _single(_listed(intersection(touched, complement(whole)), tiles))
    numbers = bitmaps.of(plain, grid, partial.owner * QUERY_TILE, partial.low * KEY_TILE)
    live = numbers != EMPTY
    owner = torch.cat([full.owner, partial.owner[live]])
    first = torch.cat([full.low, partial.low[live]])
    count = torch.cat([full.high - full.low, torch.ones_like(partial.low[live])])
    bitmap = torch.cat([torch.full_like(full.low, FULL), numbers[live]])
    order = (owner * (-(-grid.kv_len // KEY_TILE)) + first).argsort()
    starts = torch.zeros(tiles + 1, dtype=torch.int64, device="cpu")
    starts[1:] = torch.bincount(owner, minlength=tiles).cumsum(0)
    return Entries(starts, torch.stack([first, count, bitmap], 1)[order])


def of_one_query(row: Intervals, grid: Grid, bitmaps: Bitmaps) -> Entries:
    """Find the live tiles of a single query from the keys that it sees."""
    entries: list[tuple[int, int, int]] = []
    partial: dict[int, list[int]] = {}
    keys = intervals.between(grid.kv_offset, grid.kv_offset + grid.kv_len)
    for start, end in intervals.intersection(row, keys):
        low, high = start - grid.kv_offset, end - grid.kv_offset
        first, last = (
            -(-low // KEY_TILE),
            (-(-high // KEY_TILE) if high == grid.kv_len else high // KEY_TILE),
        )
        if first < last:
            entries.append((first, last - first, FULL))
        edges = [(low, min(high, first * KEY_TILE))]
        if last >= first:
            edges.append((max(low, last * KEY_TILE), high))
        for left, right in edges:
            if left < right:
                tile = left // KEY_TILE
                bits = partial.setdefault(tile, [0] * KEY_TILE)
                bits[left - tile * KEY_TILE : right - tile * KEY_TILE] = [1] * (right - left)
    for tile, bits in partial.items():
        entries.append((tile, 1, bitmaps.number(torch.tensor(bits, device="cpu"))))
    found = torch.tensor(sorted(entries), dtype=torch.int64, device="cpu").view(-1, 3)
    return Entries(torch.tensor([0, len(entries)], device="cpu"), found)


def _touched(keys: Spans, grid: Grid) -> Spans:
    """Return the key tiles that hold a key of the set."""
    used = keys.low < keys.high
    low = (keys.low - grid.kv_offset) // KEY_TILE
    high = -((grid.kv_offset - keys.high) // KEY_TILE)
    return gathered(torch.where(used, low, FAR), torch.where(used, high, FAR))


def _whole(keys: Spans, grid: Grid) -> Spans:
    """Return the key tiles that lie wholly in the set; the last tile may be cut short."""
    used, end = keys.low < keys.high, grid.kv_offset + grid.kv_len
    low = -((grid.kv_offset - keys.low) // KEY_TILE)
    last = torch.where(keys.high == end, keys.high + KEY_TILE - 1, keys.high)
    high = (last - grid.kv_offset) // KEY_TILE
    return gathered(torch.where(used, low, FAR), torch.where(used, high, FAR))


def _listed(found: Spans, tiles: int) -> _Runs:
    low, high = found.low.expand(tiles, -1), found.high.expand(tiles, -1)
    owner, column = (low < high).nonzero(as_tuple=True)
    return _Runs(owner, low[owner, column], high[owner, column])


def _single(runs: _Runs) -> _Runs:
    """Take runs apart into single tiles."""
    counts = runs.high - runs.low
    run = torch.repeat_interleave(torch.arange(len(counts), device="cpu"), counts)
    tile = runs.low[run] + torch.arange(len(run), device="cpu") - (counts.cumsum(0) - counts)[run]
    return _Runs(runs.owner[run], tile, tile + 1)

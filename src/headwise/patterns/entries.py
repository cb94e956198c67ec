"""Which tiles of a call are live: runs of full tiles, and partial ones with their bitmaps."""

from collections.abc import Sequence
from functools import reduce
from itertools import chain, pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.patterns import intervals
from headwise.patterns.base import Pattern
from headwise.patterns.bitmaps import EMPTY, FULL, Bitmaps, packed
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


def of_pairs(plain: Pattern, grid: Grid, bitmaps: Bitmaps) -> Entries:
    """Find the live tiles of a small call by asking for every pair."""
    queries = torch.arange(grid.q_offset, grid.q_offset + grid.q_len, device="cpu").unsqueeze(1)
    keys = torch.arange(grid.kv_offset, grid.kv_offset + grid.kv_len, device="cpu")
    allowed = plain._allows(queries, keys).expand(grid.q_len, grid.kv_len)
    height = min(grid.q_len, QUERY_TILE)
    padding = (0, -grid.kv_len % KEY_TILE, 0, -grid.q_len % height)
    down, along = -(-grid.q_len // height), -(-grid.kv_len // KEY_TILE)
    tiles = pad(allowed, padding).view(down, height, along, KEY_TILE).transpose(1, 2)
    held = tiles.sum((2, 3))
    rows = (grid.q_len - torch.arange(down, device="cpu") * height).clamp(max=height)
    columns = (grid.kv_len - torch.arange(along, device="cpu") * KEY_TILE).clamp(max=KEY_TILE)
    numbers = torch.where(held == rows.unsqueeze(1) * columns, FULL, EMPTY)
    partial = (held > 0) & (numbers != FULL)
    numbers[partial] = bitmaps.several(packed(tiles[partial]))
    owner, tile = (held > 0).nonzero(as_tuple=True)
    starts = torch.zeros(down + 1, dtype=torch.int64, device="cpu")
    starts[1:] = (held > 0).sum(1).cumsum(0)
    return Entries(starts, torch.stack([tile, torch.ones_like(tile), numbers[owner, tile]], 1))


def of_few_queries(rows: Sequence[Intervals], grid: Grid, bitmaps: Bitmaps) -> Entries:
    """Find the live tiles of up to one tile of queries from the keys that each of them sees."""
    keys = intervals.between(0, grid.kv_len)
    seen = [
        intervals.intersection([(a - grid.kv_offset, b - grid.kv_offset) for a, b in row], keys)
        for row in rows
    ]
    some, every = reduce(intervals.union, seen), reduce(intervals.intersection, seen)
    ends = [(low, high + KEY_TILE - 1 if high == grid.kv_len else high) for low, high in every]
    whole = intervals.normalise((-(-low // KEY_TILE), high // KEY_TILE) for low, high in ends)
    touched = intervals.normalise((low // KEY_TILE, -(-high // KEY_TILE)) for low, high in some)
    entries = [(low, high - low, FULL) for low, high in whole]
    for low, high in intervals.intersection(touched, intervals.complement(whole)):
        for tile in range(low, high):
            bits = torch.tensor(_bits(seen, tile * KEY_TILE), dtype=torch.int64, device="cpu")
            entries.append((tile, 1, bitmaps.number(bits)))
    found = torch.tensor(sorted(entries), dtype=torch.int64, device="cpu").view(-1, 3)
    return Entries(torch.tensor([0, len(entries)], device="cpu"), found)


def _bits(seen: Sequence[Intervals], start: int) -> list[int]:
    """Return the bitmap of the tile of keys at ``start``: for every key the queries that see it."""
    tile = intervals.between(start, start + KEY_TILE)
    cut = [intervals.intersection(row, tile) for row in seen]
    edges = sorted({start, start + KEY_TILE, *chain.from_iterable(chain.from_iterable(cut))})
    bits: list[int] = []
    for low, high in pairwise(edges):
        holds = [intervals.covers(row, low, high) for row in cut]
        bits += [sum(1 << query for query, held in enumerate(holds) if held)] * (high - low)
    return bits


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

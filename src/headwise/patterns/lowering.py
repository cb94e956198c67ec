"""From a pattern to the live tiles of a call, in time that follows the live tiles."""

import torch

from headwise.patterns import intervals, spans
from headwise.patterns.base import Pattern
from headwise.patterns.bitmaps import Bitmaps
from headwise.patterns.entries import Entries, of_few_queries, of_pairs, of_tiles, runs_of
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import Intervals
from headwise.patterns.layout_cache import LayoutCache
from headwise.patterns.tiles import TileLayout
from headwise.patterns.variants import variants

# Up to so many queries, asking each for its keys costs less than asking for tiles.
_FEW = 16

# Up to so many pairs, asking for each costs less than asking for tiles.
_FEW_PAIRS = 1 << 17

kept = LayoutCache()

# Layouts of few queries are those of decoding: the layers of one step share them, and the next step
# asks for others.
kept_few = LayoutCache(1 << 20)


def lower(pattern: Pattern, places: tuple[Grid, ...]) -> TileLayout | None:
    """Return the live tiles of a call, or ``None`` where every query sees every key.

    Args:
        pattern: Who may attend to whom.
        places: One grid for all samples, or one per sample.

    Raises:
        PatternError: The pattern does not fit the sizes or positions of the call.
    """
    key = (pattern, places)
    room = kept_few if places[0].q_len <= _FEW else kept
    try:
        return room.get(key)
    except KeyError:
        layout = _lowered(pattern, places)
        room.put(key, layout)
        return layout


def _lowered(pattern: Pattern, places: tuple[Grid, ...]) -> TileLayout | None:
    told = variants(pattern, places)
    plains = [(plain.placed(grid).simplified(), grid) for plain, grid in told.found]
    if all(sees_all(plain, grid) for plain, grid in plains):
        return None

    bitmaps = Bitmaps()
    found = [_entries(plain, grid, bitmaps) for plain, grid in plains]
    ends = torch.tensor([0, *(len(part.entries) for part in found)], device="cpu").cumsum(0)
    starts = [part.starts + end for part, end in zip(found, ends.tolist(), strict=False)]
    return TileLayout(
        places[0].q_len,
        places[0].kv_len,
        told.which.to(torch.int32),
        torch.stack(starts).to(torch.int32),
        torch.cat([part.entries for part in found]).to(torch.int32),
        bitmaps.stacked(),
    )


def sees_all(plain: Pattern, grid: Grid) -> bool:
    """Say whether every query of a call sees every key, as far as that is easily seen."""
    if not grid.q_len or not grid.kv_len:
        return True
    low, high = grid.kv_offset, grid.kv_offset + grid.kv_len
    if (rows := _rows(plain, grid)) is not None:
        return all(intervals.covers(row, low, high) for row in rows)
    whole = grid.q_offset + torch.tensor([[0], [grid.q_len - 1]], device="cpu")
    return spans.covers(plain.reach(spans.Runs(whole[0], whole[1], low, high)).sure, low, high)


def _entries(plain: Pattern, grid: Grid, bitmaps: Bitmaps) -> Entries:
    if (rows := _rows(plain, grid)) is not None:
        return of_few_queries(rows, grid, bitmaps)
    if grid.q_len * grid.kv_len <= _FEW_PAIRS:
        return of_pairs(plain, grid, bitmaps)
    return of_tiles(plain, grid, plain.reach(runs_of(grid)), bitmaps)


def _rows(plain: Pattern, grid: Grid) -> list[Intervals] | None:
    """Return what each of a few queries sees, where the pattern knows it as ranges."""
    if grid.q_len > _FEW:
        return None
    rows = []
    for query in range(grid.q_offset, grid.q_offset + grid.q_len):
        row = plain.row(query)
        if row is None:
            return None
        rows.append(row)
    return rows

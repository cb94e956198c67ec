"""Laws of lowering: tiles stand for the same pairs as the pattern they come from."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.ops.softmax.layouts import layout_of
from headwise.patterns import Causal, Dense, Documents, Pattern, Window, lowering
from headwise.patterns.bitmaps import Bitmaps
from headwise.patterns.entries import Entries, of_few_queries, of_tiles, runs_of
from headwise.patterns.grid import Grid, grids
from headwise.patterns.lowering import lower
from headwise.patterns.tiles import KEY_TILE, QUERY_TILE, TileLayout
from tests.support import tiles
from tests.support.leaves import fits
from tests.support.settings import Setting
from tests.support.strategies import (
    EVERY_KIND,
    kind_of,
    patterns,
    settings_for,
    settings_of_calls,
)

LENGTHS = st.sampled_from([1, 5, 47, 48, 49, 97, 127, 128, 129, 257, 300])
LONG = st.sampled_from([97, 300, 513, 1040])
on_every_kind = pytest.mark.parametrize("kind", EVERY_KIND)
few = settings(max_examples=settings().max_examples // 2)


def lowered_mask(pattern: Pattern, setting: Setting) -> torch.Tensor:
    places = grids(setting.q_len, setting.kv_len, setting.q_offset, setting.kv_offset)
    layout = layout_of(pattern, places)
    shape = (setting.batch, setting.heads, setting.q_len, setting.kv_len)
    if layout is None:
        return torch.ones(shape, dtype=torch.bool)
    mask = tiles.spelled(layout)
    assert torch.equal(layout.live_pairs(), mask.sum((2, 3)))
    return mask.expand(shape)


def assert_lowered(pattern: Pattern, setting: Setting) -> None:
    """Compare both ways of a small call with the rule: the usual one, and that of long inputs."""
    wanted = pattern.dense(setting.q_len, setting.kv_len, **setting.offsets)
    for small in (lowering._FEW_PAIRS, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lowering, "_FEW_PAIRS", small)
            lowering.kept.clear()
            lowering.kept_few.clear()
            found = lowered_mask(pattern, setting)
        assert torch.equal(found, wanted.expand(setting.batch, setting.heads, -1, -1))


@on_every_kind
@given(data=st.data())
def test_tiles_hold_the_pairs_of_every_kind(kind: str, data: st.DataObject) -> None:
    setting = data.draw(settings_for(kind, LENGTHS))
    assert_lowered(data.draw(kind_of(kind, setting)), setting)


@given(st.data())
def test_tiles_hold_the_pairs_of_combinations(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls(LENGTHS))
    assert_lowered(data.draw(patterns(setting)), setting)


@on_every_kind
@given(data=st.data())
def test_tiles_of_one_kind_allow_the_same_pairs(kind: str, data: st.DataObject) -> None:
    setting = data.draw(settings_for(kind, LONG))
    pattern = data.draw(kind_of(kind, setting))
    query, key = setting.positions(0)
    grid = Grid(setting.q_len, setting.kv_len, query, key)
    plain = pattern.sample(0, 0).placed(grid)
    corners = torch.cartesian_prod(
        torch.arange(0, grid.q_len, QUERY_TILE), torch.arange(0, grid.kv_len, KEY_TILE)
    )
    mask = pattern.sample(0, 0).dense(grid.q_len, grid.kv_len, query, key).view(grid.q_len, -1)
    numbers = plain.kinds(corners[:, 0] + query, corners[:, 1] + key).tolist()
    assert len(numbers) == len(corners)
    found: dict[tuple[int, ...], torch.Tensor] = {}
    for number, (row, column) in zip(numbers, corners.tolist(), strict=True):
        tile = mask[row : row + QUERY_TILE, column : column + KEY_TILE]
        first = found.setdefault((*number, *tile.shape), tile)
        assert torch.equal(tile, first), f"{plain} at {(row, column)} of {grid}"


@on_every_kind
@few
@given(data=st.data())
def test_few_queries_are_lowered_as_many_are(kind: str, data: st.DataObject) -> None:
    setting = data.draw(settings_for(kind, LENGTHS))
    setting = replace(setting, q_len=data.draw(st.integers(1, 5) | st.just(QUERY_TILE)))
    if not fits(kind, setting):
        return
    pattern = data.draw(kind_of(kind, setting))
    query, key = setting.positions(0)
    grid = Grid(setting.q_len, setting.kv_len, query, key)
    plain = pattern.sample(0, 0).placed(grid)
    rows = [plain.row(query + row) for row in range(grid.q_len)]
    wanted = pattern.sample(0, 0).dense(grid.q_len, grid.kv_len, query, key)
    bitmaps = Bitmaps()
    found = [of_tiles(plain, grid, plain.reach(runs_of(grid)), bitmaps)]
    known = [row for row in rows if row is not None]
    if len(known) == len(rows):
        found.append(of_few_queries(known, grid, bitmaps))
    for entries in found:
        mask = tiles.spelled(_layout(entries, grid, bitmaps))
        assert torch.equal(mask[0, 0], wanted.view(wanted.shape[-2:]))


def _layout(found: Entries, grid: Grid, bitmaps: Bitmaps) -> TileLayout:
    which = torch.zeros(1, 1, dtype=torch.int32)
    starts = found.starts.unsqueeze(0)
    return TileLayout(grid.q_len, grid.kv_len, which, starts, found.entries, bitmaps.stacked())


@given(LENGTHS, LENGTHS, st.integers(0, 300), st.integers(0, 200), st.integers(0, 200))
def test_tiles_of_windows_at_tile_edges(
    q_len: int, kv_len: int, offset: int, left: int, right: int
) -> None:
    setting = Setting(1, 1, q_len, kv_len, offset)
    for pattern in (Window(left, right), Causal() & Window(left, 0), ~Window(left, right)):
        assert_lowered(pattern, setting)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=8))
def test_tiles_of_packed_documents(lengths: list[int]) -> None:
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    setting = Setting(1, 1, len(ids), len(ids))
    for pattern in (Documents(ids), Documents(ids) & Causal()):
        assert_lowered(pattern, setting)


def test_live_tiles_follow_the_window_and_not_the_square() -> None:
    def live(length: int) -> int:
        layout = lower(Causal() & Window(200, 0), grids(length, length, None, 0))
        assert layout is not None
        return int(layout.live_tiles().sum())

    assert live(8192) < 2.1 * live(4096)


def test_memory_of_a_shifted_rule_does_not_grow_with_the_length() -> None:
    short, long = (
        lower(Causal(), grids(length, length, None, 0)) for length in (2 * 384, 20 * 384)
    )
    assert short is not None
    assert long is not None
    assert len(long.bitmaps) == len(short.bitmaps)


def test_empty_tiles_are_dropped() -> None:
    mask = torch.zeros(100, 300, dtype=torch.bool)
    mask[70, 290] = True
    layout = lower(Dense(mask), grids(100, 300, None, 0))
    assert layout is not None
    assert layout.entries.tolist() == [[2, 1, 0]]
    assert layout.starts.tolist() == [[0, 0, 1, 1]]


def test_a_closed_pattern_has_no_tiles() -> None:
    layout = lower(Causal() & ~Causal(), grids(50, 50, None, 0))
    assert layout is not None
    assert layout.live_tiles().tolist() == [[0]]
    assert layout.live_pairs().tolist() == [[0]]

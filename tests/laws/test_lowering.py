"""Laws of lowering: tiles stand for the same pairs as the pattern they come from."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.patterns import Causal, Dense, Documents, Pattern, Window
from headwise.patterns.grid import grids
from headwise.patterns.lowering import lower
from tests.support import tiles
from tests.support.strategies import Setting, patterns, settings_of_calls

LENGTHS = st.sampled_from([1, 5, 47, 48, 49, 97, 127, 128, 129, 257, 300])


def lowered_mask(pattern: Pattern, setting: Setting) -> torch.Tensor:
    places = grids(setting.q_len, setting.kv_len, setting.q_offset, setting.kv_offset)
    layout = lower(pattern, places)
    shape = (setting.batch, setting.heads, setting.q_len, setting.kv_len)
    if layout is None:
        return torch.ones(shape, dtype=torch.bool)
    mask = tiles.spelled(layout)
    assert torch.equal(layout.live_pairs(), mask.sum((2, 3)))
    return mask.expand(shape)


@given(st.data())
def test_tiles_hold_the_pairs_of_the_pattern(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls(LENGTHS))
    pattern = data.draw(patterns(setting))
    wanted = pattern.dense(setting.q_len, setting.kv_len, **setting.offsets)
    assert torch.equal(
        lowered_mask(pattern, setting), wanted.expand(setting.batch, setting.heads, -1, -1)
    )


@given(LENGTHS, LENGTHS, st.integers(0, 300), st.integers(0, 200), st.integers(0, 200))
def test_tiles_of_windows_at_tile_edges(
    q_len: int, kv_len: int, offset: int, left: int, right: int
) -> None:
    setting = Setting(1, 1, q_len, kv_len, offset)
    for pattern in (Window(left, right), Causal() & Window(left, 0), ~Window(left, right)):
        wanted = pattern.dense(q_len, kv_len, offset)
        assert torch.equal(lowered_mask(pattern, setting)[0, 0], wanted)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=8))
def test_tiles_of_packed_documents(lengths: list[int]) -> None:
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    setting = Setting(1, 1, len(ids), len(ids))
    for pattern in (Documents(ids), Documents(ids) & Causal()):
        assert torch.equal(lowered_mask(pattern, setting)[0, 0], pattern.dense(len(ids), len(ids)))


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

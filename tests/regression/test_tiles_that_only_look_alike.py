"""Tiles that allow other pairs shared one bitmap, so that queries saw keys of another tile."""

import sys

import pytest
import torch

import headwise as hw
from headwise.patterns import Pattern
from headwise.patterns.grid import grids
from headwise.patterns.lowering import lower
from tests.support import tiles

CALLS: list[tuple[Pattern, int, int, int | None, int]] = [
    # The phase of a query in its block decides over gaps between both bounds.
    (hw.BlockWindow(300, None, 0), 2000, 2000, None, 0),
    (hw.BlockWindow(300, 0, None), 2000, 2000, None, 0),
    # A tile may begin at position -1, the number that stood for tiles without a chosen token.
    (hw.GlobalTokens(0), 100, 99, None, 0),
    # Queries before position 0 belong to no block, keys before it are not drawn.
    (hw.RandomBlocks(64, 3, 111, 5), 700, 700, None, -64),
    (hw.RandomBlocks(64, 3, 111, 5), 700, 700, None, -200),
    (hw.RandomBlocks(192, 3, 78, 5, length=685), 2049, 700, None, 200),
    (hw.RandomBlocks(2, 1, 0, global_blocks=1), 4, 6, 0, -2),
    # Bounds past every position overflowed.
    (hw.Window(0, sys.maxsize), 100, 300, None, 0),
    (hw.Window(sys.maxsize, 0, 2), 100, 300, None, 0),
    (hw.BlockWindow(2, sys.maxsize, 0), 100, 300, None, 0),
    (hw.BlockWindow(2, 0, sys.maxsize), 100, 300, None, 0),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]}-{call[1:]}")
def test_tiles_hold_the_pairs_of_the_pattern(
    call: tuple[Pattern, int, int, int | None, int],
) -> None:
    pattern, q_len, kv_len, q_offset, kv_offset = call
    layout = lower(pattern, grids(q_len, kv_len, q_offset, kv_offset))
    assert layout is not None
    wanted = pattern.dense(q_len, kv_len, q_offset, kv_offset)
    assert torch.equal(tiles.spelled(layout)[0, 0], wanted)


def test_nothing_is_drawn_before_the_first_position() -> None:
    seen = hw.RandomBlocks(2, 1, 0, global_blocks=1).dense(6, 8, -2, -2)
    assert not seen[:, :2].any()
    assert not seen[:2].any()

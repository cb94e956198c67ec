"""Lowering neither keeps gigabytes nor takes ages over masks full of holes."""

import time

import torch

import headwise as hw
from headwise.patterns.grid import grids
from headwise.patterns.layout_cache import LayoutCache
from headwise.patterns.lowering import kept, lower


def test_what_is_kept_is_bounded_in_bytes() -> None:
    room = LayoutCache(room=50_000)
    for number in range(40):
        pattern = hw.KeyMask(torch.arange(3000) > number)
        room.put((pattern, grids(1, 3000, None, 0)), None)
        assert room.nbytes <= 50_000
    assert (pattern, grids(1, 3000, None, 0)) in room
    large, huge = hw.KeyMask(torch.ones(90_000)), hw.KeyMask(torch.ones(500_000))
    room.put((large, grids(1, 90_000, None, 0)), None)
    assert (large, grids(1, 90_000, None, 0)) in room, "kept alone"
    assert (pattern, grids(1, 3000, None, 0)) not in room
    room.put((huge, grids(1, 500_000, None, 0)), None)
    assert (huge, grids(1, 500_000, None, 0)) not in room


def test_equal_patterns_share_one_layout() -> None:
    kept.clear()
    first = lower(hw.Causal() & hw.KeyMask([True] * 99 + [False]), grids(100, 100, None, 0))
    second = lower(hw.Causal() & hw.KeyMask([True] * 99 + [False]), grids(100, 100, None, 0))
    assert first is second


def test_mask_full_of_holes_lowers_in_linear_time() -> None:
    pattern = hw.KeyMask(torch.arange(8192) % 2 == 0)
    started = time.perf_counter()
    layout = lower(pattern, grids(1024, 8192, None, 0))
    assert time.perf_counter() - started < 5.0  # it took 43 s where the time was quadratic
    assert layout is not None
    assert int(layout.live_pairs()) == 1024 * 4096

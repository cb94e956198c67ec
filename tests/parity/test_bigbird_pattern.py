"""The paper's set of blocks: exactly what bigbird says, for every length, on every path."""

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.support.paths import Path, on_exact_once
from tests.support.shapes import Sizes
from tests.support.whole_calls import judged_whole, simple

BLOCK = 3


def blocks_of(pattern: hw.patterns.Pattern, length: int) -> Tensor:
    """Return which blocks see which, after checking that each is seen wholly or not at all."""
    seen = pattern.dense(length, length)
    number = torch.arange(length) // BLOCK
    found = torch.zeros(int(number[-1]) + 1, int(number[-1]) + 1, dtype=torch.bool)
    found[number.unsqueeze(1), number] = seen
    assert torch.equal(found[number.unsqueeze(1), number], seen)
    return found


@pytest.mark.parametrize("length", [1, 3, 4, 8, 9, 14, 15, 20, 33, 60, 61])
@pytest.mark.parametrize("window", [1, 3, 5])
@pytest.mark.parametrize("ends", [0, 1, 2])
@pytest.mark.parametrize("random", [0, 1, 3, 50])
def test_window_ends_and_random_blocks_are_exact(
    length: int, window: int, ends: int, random: int
) -> None:
    pattern = hw.patterns.bigbird(BLOCK, window, ends, random, seed=4)
    seen = blocks_of(pattern, length)
    blocks = len(seen)
    for row in range(blocks):
        at_ends = {b for b in range(blocks) if b < ends or b >= blocks - ends}
        expected = at_ends | {b for b in range(blocks) if abs(b - row) <= window // 2}
        found = set(seen[row].nonzero().flatten().tolist())
        if row in at_ends:
            assert found == set(range(blocks))
            continue
        left = blocks - len(expected)
        assert expected <= found
        assert len(found - expected) == min(random, left)


def test_seeds_and_rows_draw_differently_and_always_the_same() -> None:
    one, again, other = (hw.patterns.bigbird(BLOCK, seed=seed).dense(90, 90) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    drawn = blocks_of(hw.RandomBlocks(BLOCK, 3, 1, 3, 1), 90)
    assert len({tuple(row) for row in drawn[1:-1].tolist()}) > 20


@pytest.mark.parametrize("length", [20, 130, 131, 150])
def test_short_inputs_are_never_full_and_always_right(length: int) -> None:
    pattern = hw.patterns.bigbird(4, 1, 1, 1, seed=2)
    q, kv = torch.ones(1, 1, length, 8), torch.ones(1, 1, length, 8)
    fraction = pattern.dense(length, length).float().mean().item()
    assert fraction < 1
    plan = hw.explain(q, kv, kv, pattern)
    assert plan.live_fraction == pytest.approx(fraction)


@on_exact_once
@pytest.mark.parametrize("length", [20, 131])
def test_outputs_and_gradients_on_every_path(path: Path, length: int) -> None:
    pattern = hw.patterns.bigbird(4, 3, 1, 2, seed=2) & hw.Lengths([length, length - 5])
    judged_whole(path, simple(Sizes(2, 1, 2, length, length, 8, 8), pattern=pattern))

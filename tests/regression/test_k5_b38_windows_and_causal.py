"""B38: a window was joined with the causal mask by the wrong operator, and so never kept."""

from collections.abc import Callable

import pytest
import torch

import headwise as hw
from headwise.patterns import Fixed, GlobalBlocks, Pattern, Tiles
from tests.support.judge import judged
from tests.support.paths import Path, on_all
from tests.support.shapes import Sizes, inputs

REAL = torch.ones(2, 9, dtype=torch.bool)
REAL[0, :2] = REAL[1, 6:] = False
TILED = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]]) > 0

Rule = Callable[[int, int], bool]
WINDOWS: list[tuple[Pattern, Rule]] = [
    (hw.Window(3, 0), lambda i, j: 0 <= i - j <= 3),
    (hw.Window(3, 2), lambda i, j: -2 <= i - j <= 3),
    (hw.Window(2, 1, dilation=2), lambda i, j: i - j in (4, 2, 0, -2)),
    (hw.Strided(4), lambda i, j: abs(i - j) < 4 or (i - j) % 4 == 0),
    (Fixed(4), lambda i, j: i // 4 == j // 4 or j % 4 == 3),
    (hw.BlockWindow(4, 1, 0), lambda i, j: 0 <= i // 4 - j // 4 <= 1),
    (hw.BlockWindow(4, 0, 1), lambda i, j: -1 <= i // 4 - j // 4 <= 0),
    (hw.Window(1, 1) | hw.GlobalTokens(2), lambda i, j: abs(i - j) <= 1 or 2 in (i, j)),
    (GlobalBlocks(4, 1, 0) | hw.Window(0, 0), lambda i, j: i == j or i < 4 or j < 4),
    (hw.Documents(torch.arange(9) // 4), lambda i, j: i // 4 == j // 4),
]


@on_all
@pytest.mark.parametrize(("window", "rule"), WINDOWS, ids=[repr(w)[:40] for w, _ in WINDOWS])
@pytest.mark.parametrize("length", [8, 9])
def test_every_pair_of_both(path: Path, window: Pattern, rule: Rule, length: int) -> None:
    pairs = [[j <= i and rule(i, j) for j in range(length)] for i in range(length)]
    given = inputs(Sizes(2, 2, 1, length, length, 8, 8))
    visible = torch.tensor(pairs)
    for both in (hw.Causal() & window, window & hw.Causal()):
        judged(path, *given, both, visible=visible)
        real = REAL[:, :length]
        padded = visible & real[:, None, None]
        judged(path, *given, both & hw.KeyMask(real), visible=padded)


@on_all
def test_tiles_of_a_length_that_is_no_multiple(path: Path) -> None:
    visible = torch.kron(TILED.int(), torch.ones(4, 4, dtype=torch.int32))[:9, :9] > 0
    given = inputs(Sizes(2, 2, 1, 9, 9, 8, 8))
    both = visible & torch.ones(9, 9).tril().bool() & REAL[:, None, None]
    judged(path, *given, Tiles(TILED, 4) & hw.Causal() & hw.KeyMask(REAL), visible=both)

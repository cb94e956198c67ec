"""B24: a mask made for more keys than were given was read past its end."""

from collections.abc import Callable

import pytest
import torch

import headwise as hw
from headwise.patterns import Tiles
from tests.support.judge import judged
from tests.support.paths import Path, on_all
from tests.support.shapes import Sizes, inputs

MASK = torch.rand(10, 20, generator=torch.Generator().manual_seed(0)) < 0.5
SHORT = inputs(Sizes(q_len=10, kv_len=17))


@on_all
@pytest.mark.parametrize(
    "pattern",
    [
        lambda: hw.Dense(MASK),
        lambda: hw.Dense(MASK[:9, :17]),
        lambda: ~hw.Dense(MASK) | hw.Causal(),
        lambda: hw.KeyMask(MASK[0]),
        lambda: hw.Causal() & hw.KeyMask(MASK[:2]),
        lambda: hw.Documents(torch.zeros(16, dtype=torch.int64)),
        lambda: Tiles(MASK[:2, :5], 4) & hw.Causal(),
        lambda: Tiles(MASK[:4, :5].int(), 4),
        lambda: hw.PerHead([hw.Causal(), hw.Strided(3), hw.KeyMask(MASK[0])]),
        lambda: hw.PerHead([hw.Causal(), hw.Strided(3)]),
        lambda: hw.GlobalTokens(MASK[:3]) | hw.Causal(),
        lambda: hw.Full() | hw.KeyMask(MASK[0]),
        lambda: hw.Dense(MASK) | hw.Full(),
        lambda: ~~(hw.Full() | Tiles(MASK, 4)),
        lambda: hw.Window(None, None) | hw.Documents(torch.zeros(16, dtype=torch.int64)),
    ],
)
def test_other_sizes_are_refused(path: Path, pattern: Callable[[], hw.patterns.Pattern]) -> None:
    with path.taken() as backend, pytest.raises(hw.PatternError, match=r"must|given for|make \d"):
        hw.attend(*SHORT, pattern(), backend=backend)


@on_all
def test_cropping_is_up_to_the_caller(path: Path) -> None:
    judged(path, *SHORT, hw.Dense(MASK[:, :17]), visible=MASK[:, :17])


@on_all
def test_tiles_and_chosen_tokens_are_of_this_call(path: Path) -> None:
    tiles = MASK[:3, :5]
    visible = tiles.repeat_interleave(4, 0).repeat_interleave(4, 1)[:10, :17]
    judged(path, *SHORT, Tiles(tiles, 4), visible=visible)
    columns = MASK[0, :17] | MASK[0, 7:17, None]
    judged(path, *SHORT, hw.GlobalTokens(MASK[0]), visible=columns)

"""B18: a mask merged with key padding marked rows as well as columns."""

import pytest
import torch

import headwise as hw
from headwise.patterns import Pattern, Tiles
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_layers
from tests.support.shapes import Sizes, inputs

REAL = torch.ones(2, 8, dtype=torch.bool)
REAL[1, 5:] = False
MASK = torch.ones(2, 4, 8, 8).tril().bool()


@on_all
@pytest.mark.parametrize(
    "pattern",
    [
        *(hw.Dense(MASK), hw.Causal(), hw.Strided(1) & hw.Causal(), Tiles(MASK, 1)),
        *(hw.PerHead([hw.Causal()] * 4), hw.Causal() & hw.GlobalTokens(torch.ones(2, 8) > 0)),
    ],
    ids=lambda pattern: repr(pattern)[:40],
)
def test_padded_queries_still_see_real_keys(path: Path, pattern: Pattern) -> None:
    visible = MASK & REAL[:, None, None]
    given = inputs(Sizes(2, 4, 1, 8, 8, 4, 4))
    for padding in (hw.KeyMask(REAL), hw.Lengths([8, 5])):
        output = judged(path, *given, pattern & padding, visible=visible)
        assert (output.abs().sum(-1) > 0).all()


@on_all
def test_a_chosen_token_in_the_padding(path: Path) -> None:
    """As a query it sees the real keys; as a key it is seen by none."""
    chosen = hw.GlobalTokens([0, 6]) & hw.KeyMask(REAL)
    visible = torch.zeros(8, 8, dtype=torch.bool)
    visible[[0, 6]] = True
    visible[:, [0, 6]] = True
    given = inputs(Sizes(2, 4, 1, 8, 8, 4, 4))
    judged(path, *given, chosen, visible=visible & REAL[:, None, None])


@on_layers
def test_every_mode_of_the_layer_agrees(path: Path) -> None:
    layer = hw.MultiHeadAttention(4, 4)
    x = torch.randn(2, 8, 4)
    with path.taken():
        wanted = layer(x, mask=MASK, kv_mask=REAL)
        closed = torch.zeros(2, 4, 8, 8).masked_fill(~MASK, float("-inf"))
        torch.testing.assert_close(layer(x, bias=closed, kv_mask=REAL), wanted)
        layer.eval()
        with torch.no_grad():
            torch.testing.assert_close(layer(x, mask=MASK, kv_mask=REAL), wanted)
            joined = MASK & REAL[:, None, None]
            torch.testing.assert_close(layer(x, mask=joined), wanted)

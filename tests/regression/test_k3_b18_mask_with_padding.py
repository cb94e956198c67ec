"""B18: a mask merged with key padding marked rows as well as columns."""

import torch

import headwise as hw
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_layers
from tests.support.shapes import Sizes, inputs

REAL = torch.ones(2, 8, dtype=torch.bool)
REAL[1, 5:] = False
MASK = torch.ones(2, 4, 8, 8).tril().bool()


@on_all
def test_padded_queries_still_see_real_keys(path: Path) -> None:
    visible = MASK & REAL[:, None, None]
    output = judged(
        path,
        *inputs(Sizes(2, 4, 1, 8, 8, 4, 4)),
        hw.Dense(MASK) & hw.KeyMask(REAL),
        visible=visible,
    )
    assert (output.abs().sum(-1) > 0).all()


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

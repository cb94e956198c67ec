"""B32: the causal option was skipped when no other mask came with it."""

import torch

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_layers
from tests.support.shapes import Sizes, inputs

LOWER = torch.ones(4, 4).tril().bool()
REAL = torch.tensor([[True] * 4, [True, True, True, False]])


@on_all
def test_alone_and_with_padding(path: Path) -> None:
    given = inputs(Sizes(2, 2, 1, 4, 4, 8, 8))
    judged(path, *given, hw.Causal(), visible=LOWER)
    both = LOWER & REAL[:, None, None]
    judged(path, *given, hw.Causal() & hw.KeyMask(REAL), visible=both)
    judged(path, *given, hw.KeyMask(REAL) & hw.Causal(), visible=both)


@on_layers
def test_a_layer_keeps_its_own_pattern_whatever_a_call_brings(path: Path) -> None:
    layer = hw.MultiHeadAttention(8, 2, pattern=hw.Causal()).eval()
    x = torch.randn(2, 4, 8)
    spoiled = x.clone()
    spoiled[:, 2:] = torch.randn(2, 2, 8)
    everything = torch.ones(4, 4, dtype=torch.bool)
    for given in ({}, {"kv_mask": REAL}, {"mask": everything}, {"pattern": hw.Full()}):
        with path.taken(), torch.no_grad():
            before, after = layer(x, **given), layer(spoiled, **given)
        assert_same_bits(after[:, :2], before[:, :2], str(list(given)))

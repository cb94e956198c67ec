"""Patterns of every kind for one call, built outside or from tensors that a graph is given."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import headwise as hw
from headwise.patterns import (
    Fixed,
    GlobalBlocks,
    Not,
    Pattern,
    Tiles,
    bigbird,
    longformer,
    sliding_causal,
)
from tests.support.shapes import Sizes

SIZES = Sizes(batch=2, kv_heads=2, group=2, q_len=7, kv_len=7, head_dim=8, value_dim=5)


class Built(NamedTuple):
    """How a pattern is built from a tensor."""

    build: Callable[[Tensor], Pattern]
    numbers: Tensor


def _flags(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.7


SHAPES = _flags(2, 4, 4)
BUILT = {
    "key mask": Built(hw.KeyMask, _flags(2, 7)),
    "key mask for all": Built(hw.KeyMask, _flags(7)),
    "dense": Built(hw.Dense, _flags(2, 1, 7, 7)),
    "dense for all": Built(hw.Dense, _flags(7, 7)),
    "lengths": Built(hw.Lengths, torch.tensor([3, 6])),
    "both lengths": Built(lambda n: hw.Lengths(n, n.flip(0)), torch.tensor([3, 6])),
    "prefix": Built(lambda n: hw.Prefix(n) | hw.Causal(), torch.tensor([2, 4])),
    "documents": Built(hw.Documents, torch.tensor([[0, 0, 1, 1, 1, 2, -1], [0, 1, 1, 1, 2, 2, 2]])),
    "joined": Built(
        lambda m: hw.KeyMask(m) & hw.Causal() | Not(hw.Window(2, None, 2)), _flags(2, 7)
    ),
    "global tokens": Built(lambda m: hw.GlobalTokens(m) | hw.Window(1, 1), _flags(2, 7)),
    "global tokens for all": Built(lambda m: longformer(2, m), _flags(7)),
    "global tokens by index": Built(lambda n: longformer(2, n), torch.tensor([5, 0])),
    "one global token": Built(lambda n: hw.GlobalTokens(n) | hw.Causal(), torch.tensor(3)),
    "tiles": Built(lambda m: Tiles(m, 2), _flags(2, 4, 4, 4)),
    "tiles for all": Built(lambda m: Tiles(m, (2, 3)) & hw.Causal(), _flags(4, 3)),
    "tiles by number": Built(lambda n: Tiles(n, 4, SHAPES), torch.tensor([[2, 1], [3, 0]])),
    "tiles and their shapes": Built(lambda m: Tiles([[2, 1], [3, 0]], 4, m), SHAPES),
    "heads apart": Built(
        lambda m: hw.PerHead(
            [
                hw.KeyMask(m),
                hw.GlobalTokens(m) | hw.Causal(),
                hw.Strided(2),
                Tiles(m[:, :4], (4, 2)),
            ]
        ),
        _flags(2, 7),
    ),
}
FIXED: dict[str, Pattern | None] = {
    "none": None,
    "full": hw.Full(),
    "causal": hw.Causal(),
    "window": sliding_causal(3),
    "lengths of a list": hw.Lengths([3, 6]) & ~hw.Prefix(1),
    "strides": hw.Strided(3) & hw.Causal(),
    "fixed": Fixed(3, 2) | hw.GlobalTokens((1, 4)),
    "blocks": hw.BlockWindow(2, 1, None) & ~GlobalBlocks(2, 1, 0),
    "bigbird": bigbird(2, seed=3),
    "heads": hw.PerHead([hw.Causal(), bigbird(1), longformer(2, [0]), hw.Lengths([3, 6])]),
    **{name: built.build(built.numbers) for name, built in BUILT.items()},
}

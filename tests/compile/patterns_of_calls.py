"""Patterns of every kind for one call, built outside or from tensors that a graph is given."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import headwise as hw
from headwise.patterns import Not, Pattern, sliding_causal
from tests.support.shapes import Sizes

SIZES = Sizes(batch=2, kv_heads=2, group=2, q_len=7, kv_len=7, head_dim=8, value_dim=5)


class Built(NamedTuple):
    """How a pattern is built from a tensor."""

    build: Callable[[Tensor], Pattern]
    numbers: Tensor


def _flags(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.7


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
}
FIXED: dict[str, Pattern | None] = {
    "none": None,
    "full": hw.Full(),
    "causal": hw.Causal(),
    "window": sliding_causal(3),
    "lengths of a list": hw.Lengths([3, 6]) & ~hw.Prefix(1),
    **{name: built.build(built.numbers) for name, built in BUILT.items()},
}

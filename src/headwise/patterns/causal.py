"""The two patterns that need no argument: everything, and nothing from the future."""

from dataclasses import dataclass

import torch
from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.patterns.base import Pattern, Reach
from headwise.patterns.intervals import EVERYTHING, FAR, between


@dataclass(frozen=True)
class Full(Pattern):
    """Every query sees every key."""

    @property
    @override
    def shift_invariant(self) -> bool:
        return True

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        return torch.ones_like(q_pos, dtype=torch.bool) & torch.ones_like(kv_pos, dtype=torch.bool)

    @override
    def reach(self, first: int, last: int) -> Reach:
        return Reach(EVERYTHING, EVERYTHING)


@dataclass(frozen=True)
class Causal(Pattern):
    """A query sees its own position and everything before it.

    Example:
        >>> print(Causal().draw(2, 4))
        ■■■·
        ■■■■
    """

    @property
    @override
    def shift_invariant(self) -> bool:
        return True

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        return kv_pos <= q_pos

    @override
    def reach(self, first: int, last: int) -> Reach:
        return Reach(between(-FAR, last + 1), between(-FAR, first + 1))

"""The two patterns that need no argument: everything, and nothing from the future."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.patterns import intervals
from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import FAR, Intervals
from headwise.patterns.spans import EVERYTHING, Reach, Runs, between
from headwise.patterns.tiles import tile_gaps


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
    def thinned(self, step: int, residue: int, grid: Grid) -> Pattern:
        return self

    @override
    def reach(self, runs: Runs) -> Reach:
        return Reach(EVERYTHING, EVERYTHING)

    @override
    def row(self, position: int) -> Intervals | None:
        return intervals.EVERYTHING

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        return query.new_zeros(len(query), 1)


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
    def thinned(self, step: int, residue: int, grid: Grid) -> Pattern:
        return self

    @override
    def reach(self, runs: Runs) -> Reach:
        return Reach(between(-FAR, runs.last + 1), between(-FAR, runs.first + 1))

    @override
    def row(self, position: int) -> Intervals | None:
        return intervals.between(-FAR, position + 1)

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        return tile_gaps(query, key, 0, 0)

"""Neighbours within a distance."""

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor
from typing_extensions import override

from headwise._checks import is_int
from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns import intervals
from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import FAR, Intervals
from headwise.patterns.spans import NOTHING, Reach, Runs, between, comb
from headwise.patterns.tiles import tile_gaps


@dataclass(frozen=True)
class Window(Pattern):
    """A query sees itself, ``left`` neighbours before it and ``right`` neighbours after it.

    Args:
        left: Neighbours before the query, itself not counted; ``None`` = no bound.
        right: Neighbours after the query, itself not counted; ``None`` = no bound.
        dilation: Step between neighbours, in positions; 1 = every one.

    Raises:
        PatternError: A negative count, or a dilation below 1.

    Example:
        >>> print(Window(1, 0).draw(3, 3))
        ■··
        ■■·
        ·■■
    """

    left: int | None
    right: int | None
    dilation: int = 1

    def __post_init__(self) -> None:
        for name, count in (("left", self.left), ("right", self.right)):
            if count is not None and (not is_int(count) or count < 0):
                raise PatternError(
                    f"Window: {name} must be an int of at least 0, or None, got {count!r}\n"
                    "  hint: left and right count neighbours without the query itself; "
                    "patterns.sliding_causal(n) counts keys, itself included"
                )
        if not is_int(self.dilation) or self.dilation < 1:
            raise PatternError(
                f"Window: dilation must be an int of at least 1, got {self.dilation!r}\n"
                "  hint: 1 takes every neighbour, 2 every second one"
            )

    @property
    @override
    def shift_invariant(self) -> bool:
        return True

    @property
    @override
    def step(self) -> int:
        return self.dilation

    @override
    def thinned(self, step: int, residue: int, grid: Grid) -> Pattern:
        dilation = self.dilation // gcd(self.dilation, step)
        left, right = (
            None if count is None else count * self.dilation // (step * dilation)
            for count in (self.left, self.right)
        )
        return Window(left, right, dilation)

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        gap, (left, right) = kv_pos - q_pos, self._bounds
        seen = torch.ones_like(gap, dtype=torch.bool)
        if self.left is not None:
            seen = seen & (gap >= -left)
        if self.right is not None:
            seen = seen & (gap <= right)
        return seen if self.dilation == 1 else seen & (gap % self.dilation == 0)

    @override
    def reach(self, runs: Runs) -> Reach:
        left, right = self._bounds
        maybe = between(runs.first - left, runs.last + right + 1)
        if self.dilation == 1:
            return Reach(maybe, between(runs.last - left, runs.first + right + 1))
        return Reach(comb(runs, self.dilation, maybe), NOTHING)

    @override
    def row(self, position: int) -> Intervals | None:
        left, right = self._bounds
        whole = intervals.between(position - left, position + right + 1)
        return whole if self.dilation == 1 else None

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        left, right = self._bounds
        lowest, highest = (-left if left < FAR else right), (right if right < FAR else -left)
        if lowest > FAR // 2:
            lowest = highest = 0
        gaps = tile_gaps(query, key, lowest, highest)
        if self.dilation == 1:
            return gaps
        return torch.cat([gaps, ((key - query) % self.dilation).unsqueeze(1)], 1)

    @property
    def _bounds(self) -> tuple[int, int]:
        """Return the largest distances back and ahead, in positions."""
        left = FAR if self.left is None else min(self.left * self.dilation, FAR)
        return left, FAR if self.right is None else min(self.right * self.dilation, FAR)

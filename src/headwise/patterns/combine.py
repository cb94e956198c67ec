"""Patterns joined with ``&``, ``|`` and ``~``, and the rules that make them shorter."""

from dataclasses import dataclass
from math import gcd, lcm

import torch
from torch import Tensor
from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns import intervals, spans
from headwise.patterns.base import Pattern
from headwise.patterns.causal import Full
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import Intervals
from headwise.patterns.spans import Reach, Runs


def _agreed(a: int | None, b: int | None, what: str) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    if a == b or 1 in (a, b):
        return b if a == 1 else a
    raise PatternError(
        f"patterns joined by & or | must agree on the number of {what}, got {a} and {b}\n"
        f"  hint: build both for the same {what}, or let one of them hold for all"
    )


@dataclass(frozen=True, repr=False)
class _Pair(Pattern):
    first: Pattern
    second: Pattern

    def __post_init__(self) -> None:
        _agreed(self.first.batch_size, self.second.batch_size, "samples")
        _agreed(self.first.num_heads, self.second.num_heads, "heads")

    @property
    @override
    def batch_size(self) -> int | None:
        return _agreed(self.first.batch_size, self.second.batch_size, "samples")

    @property
    @override
    def num_heads(self) -> int | None:
        return _agreed(self.first.num_heads, self.second.num_heads, "heads")

    @property
    @override
    def nbytes(self) -> int:
        return self.first.nbytes + self.second.nbytes

    @property
    @override
    def shift_invariant(self) -> bool:
        return self.first.shift_invariant and self.second.shift_invariant

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.cat([self.first.kinds(query, key), self.second.kinds(query, key)], 1)

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        return type(self)(self.first.sample(batch, head), self.second.sample(batch, head))

    @override
    def placed(self, grid: Grid) -> Pattern:
        return type(self)(self.first.placed(grid), self.second.placed(grid))

    @override
    def thinned(self, step: int, residue: int, grid: Grid) -> Pattern:
        return type(self)(
            self.first.thinned(step, residue, grid), self.second.thinned(step, residue, grid)
        )


class Both(_Pair):
    """Pairs that both patterns allow; written ``a & b``."""

    @property
    @override
    def step(self) -> int:
        return lcm(self.first.step, self.second.step)

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        return self.first._allows(q_pos, kv_pos) & self.second._allows(q_pos, kv_pos)

    @override
    def reach(self, runs: Runs) -> Reach:
        a, b = self.first.reach(runs), self.second.reach(runs)
        return Reach(spans.intersection(a.maybe, b.maybe), spans.intersection(a.sure, b.sure))

    @override
    def row(self, position: int) -> Intervals | None:
        a, b = self.first.row(position), self.second.row(position)
        return None if a is None or b is None else intervals.intersection(a, b)

    @override
    def simplified(self) -> Pattern:
        a, b = self.first.simplified(), self.second.simplified()
        if isinstance(a, Full) or a == b:
            return b
        return a if isinstance(b, Full) else Both(a, b)

    def __repr__(self) -> str:
        return f"({self.first!r} & {self.second!r})"


class Either(_Pair):
    """Pairs that at least one of two patterns allows; written ``a | b``."""

    @property
    @override
    def step(self) -> int:
        return gcd(self.first.step, self.second.step)

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        return self.first._allows(q_pos, kv_pos) | self.second._allows(q_pos, kv_pos)

    @override
    def reach(self, runs: Runs) -> Reach:
        a, b = self.first.reach(runs), self.second.reach(runs)
        return Reach(spans.union(a.maybe, b.maybe), spans.union(a.sure, b.sure))

    @override
    def row(self, position: int) -> Intervals | None:
        a, b = self.first.row(position), self.second.row(position)
        return None if a is None or b is None else intervals.union(a, b)

    @override
    def simplified(self) -> Pattern:
        a, b = self.first.simplified(), self.second.simplified()
        if isinstance(a, Full) or a == b:
            return a
        return b if isinstance(b, Full) else Either(a, b)

    def __repr__(self) -> str:
        return f"({self.first!r} | {self.second!r})"


@dataclass(frozen=True, repr=False)
class Not(Pattern):
    """Pairs that a pattern forbids; written ``~a``."""

    inner: Pattern

    @property
    @override
    def batch_size(self) -> int | None:
        return self.inner.batch_size

    @property
    @override
    def num_heads(self) -> int | None:
        return self.inner.num_heads

    @property
    @override
    def nbytes(self) -> int:
        return self.inner.nbytes

    @property
    @override
    def shift_invariant(self) -> bool:
        return self.inner.shift_invariant

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        return Not(self.inner.sample(batch, head))

    @override
    def placed(self, grid: Grid) -> Pattern:
        return Not(self.inner.placed(grid))

    @override
    def thinned(self, step: int, residue: int, grid: Grid) -> Pattern:
        return Not(self.inner.thinned(step, residue, grid))

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        return ~self.inner._allows(q_pos, kv_pos)

    @override
    def reach(self, runs: Runs) -> Reach:
        inner = self.inner.reach(runs)
        return Reach(spans.complement(inner.sure), spans.complement(inner.maybe))

    @override
    def row(self, position: int) -> Intervals | None:
        inner = self.inner.row(position)
        return None if inner is None else intervals.complement(inner)

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        return self.inner.kinds(query, key)

    @override
    def simplified(self) -> Pattern:
        inner = self.inner.simplified()
        return inner.inner if isinstance(inner, Not) else Not(inner)

    def __repr__(self) -> str:
        return f"~{self.inner!r}"

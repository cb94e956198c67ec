"""Patterns that join only tokens a multiple of some step apart, as ones without holes.

Strides and dilations leave holes of a few tokens, and a tile with one allowed pair costs as much as
a full one. Among the tokens of one residue class the holes are gone.
"""

from dataclasses import dataclass
from functools import lru_cache

from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.patterns.base import Pattern
from headwise.patterns.combine import Both, Either
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import FAR
from headwise.patterns.per_head import PerHead
from headwise.patterns.segments import Lengths
from headwise.patterns.strided import Strided
from headwise.patterns.window import Window

# Every part is a call of its own.
_MOST_PARTS = 3

# As measured at 4,096 tokens and more.
_HOLES, _HOLES_JOINED = 128, 1024


@lru_cache(maxsize=128)
def parts(pattern: Pattern) -> tuple[Pattern, ...]:
    """Take a pattern apart so that as much as possible has a step; the parts share no pair.

    Nothing is returned for a pattern that better stays whole: nothing in it has a step, it would
    fall into many parts, or tiles reach over the holes in its windows for less.
    """
    found = _parts(pattern.simplified())
    holes = max((_holes(part) for part in found if part.step > 1), default=0)
    return found if holes >= (_HOLES if len(found) == 1 else _HOLES_JOINED) else ()


def _holes(pattern: Pattern) -> int:
    """Count the keys that a query leaves out between those of its widest dilated window."""
    if isinstance(pattern, Window):
        bounded = pattern.left is not None and pattern.right is not None
        keys = (pattern.left or 0) + (pattern.right or 0) if bounded else FAR
        return keys * (pattern.dilation - 1)
    if isinstance(pattern, Both | Either):
        return max(_holes(pattern.first), _holes(pattern.second))
    if isinstance(pattern, PerHead):
        return max(_holes(part) for part in pattern.patterns)
    return 0


def _parts(pattern: Pattern) -> tuple[Pattern, ...]:
    if isinstance(pattern, Strided) and pattern.stride > 1:
        near = Window(pattern.stride - 1, pattern.stride - 1)
        return near, Window(None, None, pattern.stride) & ~near
    if isinstance(pattern, Both):
        first, second = _parts(pattern.first), _parts(pattern.second)
        if len(first) * len(second) <= _MOST_PARTS:
            return tuple(a & b for a in first for b in second)
    if isinstance(pattern, Either):
        first, second = _parts(pattern.first), _parts(pattern.second)
        stepped = any(part.step > 1 for part in (*first, *second))
        if stepped and len(first) + len(second) <= _MOST_PARTS:
            return *first, *(part & ~pattern.first for part in second)
    return (pattern,)


@dataclass(frozen=True)
class ResidueClasses(Pattern):
    """The residue classes of a pattern with a step, as samples: class ``s % step`` of each.

    Positions count the tokens of a class. What is past the end of a short class is padding.
    """

    pattern: Pattern
    places: tuple[Grid, ...]
    batch: int

    @property
    @override
    def batch_size(self) -> int | None:
        return self.batch * self.pattern.step

    @property
    @override
    def num_heads(self) -> int | None:
        return self.pattern.num_heads

    @property
    @override
    def nbytes(self) -> int:
        return self.pattern.nbytes

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        step = self.pattern.step
        number, residue = divmod(batch, step)
        grid = self.places[number if len(self.places) > 1 else 0]
        plain = self.pattern.sample(number, head).placed(grid)
        thin = plain.thinned(step, residue, grid)
        away = grid.q_offset - grid.kv_offset
        keys = -((residue - grid.kv_len) // step)
        queries = -((residue - grid.q_len - away % step) // step) + away // step
        return thin & Lengths(keys, max(queries, 0))

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        raise AssertionError("classes are asked one by one")

"""A pattern as the tokens of one residue class see it."""

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import FAR, Intervals, normalise
from headwise.patterns.spans import Reach, Runs, Spans, gathered

Edge = TypeVar("Edge", int, Tensor)


@dataclass(frozen=True)
class EveryNth(Pattern):
    """What a placed pattern says about every ``n``-th token, as ``Pattern.thinned`` counts them."""

    inner: Pattern
    n: int
    residue: int
    grid: Grid

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        query = self._among_all(q_pos).clamp(self.grid.q_offset, self._last_query)
        return self.inner._allows(query, self._among_all(kv_pos).clamp(max=self._last_key))

    @override
    def reach(self, runs: Runs) -> Reach:
        first, last = self._among_all(runs.first), self._among_all(runs.last)
        ends = (self.grid.q_offset, self._last_query)
        all_keys = (self.grid.kv_offset, self._last_key + 1)
        found = self.inner.reach(Runs(first.clamp(*ends), last.clamp(*ends), *all_keys))
        return Reach(self._among_these(found.maybe), self._among_these(found.sure))

    @override
    def row(self, position: int) -> Intervals | None:
        place = max(position * self.n + self._first, self.grid.q_offset)
        row = self.inner.row(min(place, self._last_query))
        if row is None:
            return None
        return normalise((self._behind(low), self._behind(high)) for low, high in row)

    @property
    def _last_query(self) -> int:
        """The last query; short classes are filled up with it, and with the first in front."""
        return self.grid.q_offset + self.grid.q_len - 1

    @property
    def _last_key(self) -> int:
        return self.grid.kv_offset + self.grid.kv_len - 1

    @property
    def _first(self) -> int:
        return self.grid.kv_offset + self.residue

    def _among_all(self, position: Positions) -> Positions:
        return position * self.n + self._first

    def _among_these(self, keys: Spans) -> Spans:
        used = keys.low < keys.high
        low, high = self._behind(keys.low), self._behind(keys.high)
        return gathered(torch.where(used, low, FAR), torch.where(used, high, FAR))

    def _behind(self, edge: Edge) -> Edge:
        """Return the first of these tokens that does not stand in front of ``edge``."""
        return -((self._first - edge) // self.n)

"""Sets of key positions, one set for every run of neighbouring queries, as sorted ranges."""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.patterns.intervals import FAR, Intervals

# Gaps in a set of keys that are shorter than this many keys are not worth a range of their own.
COARSE = 128


class Spans(NamedTuple):
    """Half-open ranges, (runs, ranges) int64: sorted and apart within a run, unused ones at FAR.

    One row may stand for all runs.
    """

    low: Tensor
    high: Tensor


class Runs(NamedTuple):
    """Runs of neighbouring queries, and the keys of the call.

    ``first`` and ``last`` are the positions of the queries at both ends, (runs,) int64; the keys
    stand from ``low`` up to but not including ``high``.
    """

    first: Tensor
    last: Tensor
    low: int
    high: int

    def every(self) -> Tensor:
        """Return the positions of all queries, (runs, queries); the last one fills short runs."""
        count = int((self.last - self.first).max()) + 1 if len(self.first) else 0
        steps = self.first.unsqueeze(1) + torch.arange(count, device="cpu")
        return torch.minimum(steps, self.last.unsqueeze(1))


class Reach(NamedTuple):
    """What runs of neighbouring queries can see.

    ``maybe`` holds every key that at least one query of the run may see, and may hold more.
    ``sure`` holds only keys that all queries of the run may see, and may hold fewer.
    """

    maybe: Spans
    sure: Spans


def constant(pieces: Intervals) -> Spans:
    """Return the same set for all runs."""
    edges = torch.tensor([pieces], dtype=torch.int64, device="cpu").view(1, len(pieces), 2)
    return Spans(edges[..., 0], edges[..., 1])


EVERYTHING = constant(((-FAR, FAR),))
NOTHING = constant(())


def between(low: Tensor | int, high: Tensor | int) -> Spans:
    """Return one range for every run, empty where ``low`` is not below ``high``; (runs,) each."""
    left, right = _row(low), _row(high)
    empty = left >= right
    return Spans(torch.where(empty, FAR, left), torch.where(empty, FAR, right))


def gathered(low: Tensor, high: Tensor) -> Spans:
    """Sort ranges (runs, ranges), drop empty ones, join those that touch."""
    empty = low >= high
    low, order = low.masked_fill(empty, FAR).sort(1)
    high = high.masked_fill(empty, FAR).gather(1, order)
    if low.shape[1] < 2:
        return Spans(low, high)
    before = high.cummax(1).values
    opens = torch.ones_like(low, dtype=torch.bool)
    opens[:, 1:] = low[:, 1:] > before[:, :-1]
    place = opens.cumsum(1) - 1
    width = int(place[:, -1].max()) + 1 if len(place) else 0
    found = torch.full((len(low), width), FAR, dtype=torch.int64, device="cpu")
    ends = found.scatter_reduce(1, place, high, "amax", include_self=False)
    return _trimmed(Spans(found.scatter_reduce(1, place, low, "amin"), ends))


def union(a: Spans, b: Spans) -> Spans:
    """Return what is in ``a`` or ``b``."""
    if not a.low.shape[1] or not b.low.shape[1]:
        return b if not a.low.shape[1] else a
    runs = max(len(a.low), len(b.low))
    low = torch.cat([a.low.expand(runs, -1), b.low.expand(runs, -1)], 1)
    high = torch.cat([a.high.expand(runs, -1), b.high.expand(runs, -1)], 1)
    return gathered(low, high)


def intersection(a: Spans, b: Spans) -> Spans:
    """Return what is in both."""
    if a.low.shape[1] == 1 and b.low.shape[1] == 1:
        low, high = torch.maximum(a.low, b.low), torch.minimum(a.high, b.high)
        empty = low >= high
        return Spans(low.masked_fill(empty, FAR), high.masked_fill(empty, FAR))
    return complement(union(complement(a), complement(b)))


def complement(a: Spans) -> Spans:
    """Return every integer that is not in ``a``."""
    edge = a.low.new_full((len(a.low), 1), FAR)
    low, high = torch.cat([-edge, a.high], 1), torch.cat([a.low, edge], 1)
    empty = low >= high
    low, order = low.masked_fill(empty, FAR).sort(1)
    return _trimmed(Spans(low, high.masked_fill(empty, FAR).gather(1, order)))


def where(holds: Tensor, a: Spans) -> Spans:
    """Return ``a`` for the runs in which ``holds`` (runs,), and nothing for the others."""
    closed = ~holds.unsqueeze(1)
    return Spans(a.low.masked_fill(closed, FAR), a.high.masked_fill(closed, FAR))


def flagged(flags: Tensor, gap: int = 1) -> Spans:
    """Return the ranges in which flags (runs, places) are set; gaps shorter than ``gap`` count."""
    runs = flags.shape[0]
    edges = torch.nn.functional.pad(flags.to(torch.int8), (1, 1)).diff(dim=1)
    owner, low = (edges == 1).nonzero(as_tuple=True)
    high = (edges == -1).nonzero(as_tuple=True)[1]
    joins = torch.zeros_like(owner, dtype=torch.bool)
    joins[1:] = (owner[1:] == owner[:-1]) & (low[1:] - high[:-1] < gap)
    closes = torch.ones_like(joins)
    closes[:-1] = ~joins[1:]
    return _rows(owner[~joins], low[~joins], high[closes], runs)


def comb(runs: Runs, step: int, within: Spans) -> Spans:
    """Return the keys whose distance to a query of the run is a multiple of ``step``.

    Args:
        runs: The queries.
        step: Distance of the teeth; where they nearly touch, ``within`` is returned as it is.
        within: One range for every run, outside of which no key counts.
    """
    if step < 2 * COARSE:
        return within
    low = within.low[:, 0].clamp(min=runs.low)
    high = within.high[:, 0].clamp(max=runs.high)
    # The first tooth that ends behind ``low``.
    skipped = -((runs.last - low) // step)
    count = int(((high - low).amax() + (runs.last - runs.first).amax()) // step) + 2
    steps = (skipped.unsqueeze(1) + torch.arange(max(count, 0), device="cpu")) * step
    first = torch.maximum(runs.first.unsqueeze(1) + steps, low.unsqueeze(1))
    last = torch.minimum(runs.last.unsqueeze(1) + steps + 1, high.unsqueeze(1))
    return gathered(first, last)


def scaled(a: Spans, by: int, offset: int) -> Spans:
    """Return ranges of blocks of ``by`` keys, the first one at ``offset``, as ranges of keys."""
    used = a.low < a.high
    return Spans(
        torch.where(used, a.low * by + offset, FAR), torch.where(used, a.high * by + offset, FAR)
    )


def covers(a: Spans, low: int, high: int) -> bool:
    """Say whether every integer from ``low`` up to ``high`` is in every set."""
    return low >= high or bool(((a.low <= low) & (a.high >= high)).any(1).all())


def _rows(owner: Tensor, low: Tensor, high: Tensor, runs: int) -> Spans:
    """Lay out ranges that are sorted by the run that owns them."""
    counts = torch.bincount(owner, minlength=runs)
    width = int(counts.max()) if runs else 0
    column = torch.arange(len(owner), device="cpu") - (counts.cumsum(0) - counts)[owner]
    found = torch.full((2, runs, width), FAR, dtype=torch.int64, device="cpu")
    found[0, owner, column], found[1, owner, column] = low, high
    return Spans(found[0], found[1])


def _trimmed(a: Spans) -> Spans:
    """Drop the columns that no run uses."""
    used = int((a.low < a.high).sum(1).max()) if len(a.low) else 0
    return Spans(a.low[:, :used], a.high[:, :used])


def _row(edge: Tensor | int) -> Tensor:
    if isinstance(edge, int):
        return torch.tensor([[edge]], dtype=torch.int64, device="cpu")
    return edge.unsqueeze(1)

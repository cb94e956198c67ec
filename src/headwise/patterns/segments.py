"""Sequences with a special beginning or a cut end: prefixes and lengths."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns import intervals
from headwise.patterns.base import Pattern
from headwise.patterns.content import Content, is_traced
from headwise.patterns.counts import Counts, Settled, refuse_kind, whole_numbers
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import FAR, Intervals
from headwise.patterns.spans import Reach, Runs, constant, where
from headwise.patterns.tiles import KEY_TILE, QUERY_TILE


def _counts(name: str, numbers: Counts | Content) -> Settled | Content:
    """Return one count for all samples, or a tuple with one per sample.

    Numbers that are being traced stay a tensor; whoever reads the traced pattern checks them.
    """
    if isinstance(numbers, Content):
        return numbers
    if isinstance(numbers, Tensor) and is_traced(numbers):
        refuse_kind(name, numbers)
        return Content(numbers, torch.int64)
    counts = whole_numbers(name, numbers)
    for count in (counts,) if isinstance(counts, int) else counts:
        if count < 0:
            raise PatternError(
                f"{name} must not be negative, got {counts}\n  hint: 0 means no token"
            )
    return counts


def _pick(counts: Settled | Content, batch: int) -> int | Content:
    """Return the count of one sample."""
    if isinstance(counts, int):
        return counts
    if isinstance(counts, tuple):
        return counts[batch if len(counts) > 1 else 0]
    numbers = counts.tensor
    if numbers.ndim:
        numbers = numbers[batch if numbers.shape[0] > 1 else 0]
    return Content(numbers, torch.int64) if is_traced(numbers) else int(numbers)


def _size(counts: Settled | Content | None) -> int | None:
    if isinstance(counts, Content):
        return counts.tensor.shape[0] if counts.tensor.ndim else None
    return len(counts) if isinstance(counts, tuple) else None


def _limit(count: int | Content) -> int | Tensor:
    """Return one sample's count in a form that positions can be compared with."""
    return count.tensor if isinstance(count, Content) else count


def _thinned(count: int, step: int, first: int) -> int:
    """Return how many of every ``step``-th token, from ``first`` on, stand below ``count``."""
    return max(-((first - count) // step), 0)


@dataclass(frozen=True)
class Prefix(Pattern):
    """Keys before position ``length`` are seen by every query.

    Joined with ``Causal()`` it gives the prefix language model: ``Prefix(n) | Causal()``.

    Args:
        length: Number of tokens; an int, or one per sample as a tensor or sequence (batch,).

    Raises:
        PatternError: A negative length.
    """

    length: Any

    _alike: ClassVar[tuple[int, ...]] = (0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", _counts("Prefix: length", self.length))

    @property
    @override
    def batch_size(self) -> int | None:
        return _size(self.length)

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        return Prefix(_pick(self.length, batch))

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        seen: Allowed = kv_pos < _limit(self.length)
        return seen & torch.ones_like(q_pos, dtype=torch.bool)

    @override
    def reach(self, runs: Runs) -> Reach:
        seen = constant(intervals.between(-FAR, self.length))
        return Reach(seen, seen)

    @override
    def row(self, position: int) -> Intervals | None:
        return intervals.between(-FAR, self.length)

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        real: Tensor = (self.length - key).clamp(0, KEY_TILE).unsqueeze(1)
        return real


@dataclass(frozen=True)
class Lengths(Pattern):
    """Padding at the end: keys at or past a sample's length are seen by none.

    Args:
        kv_lengths: Number of real keys; an int, or one per sample as a tensor or sequence (batch,).
        q_lengths: Number of real queries, likewise; queries at or past it see nothing.
            ``None`` = all are real.

    Raises:
        PatternError: A negative length, or different numbers of samples.
    """

    kv_lengths: Any
    q_lengths: Any = None

    _alike: ClassVar[tuple[int, ...]] = (0, 0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_lengths", _counts("Lengths: kv_lengths", self.kv_lengths))
        if self.q_lengths is None:
            return
        object.__setattr__(self, "q_lengths", _counts("Lengths: q_lengths", self.q_lengths))
        keys, queries = _size(self.kv_lengths), _size(self.q_lengths)
        if keys not in (None, 1) and queries not in (None, 1) and keys != queries:
            raise PatternError(
                "Lengths: kv_lengths and q_lengths must name the same samples, "
                f"got {keys} and {queries}\n"
                "  hint: give one length per sample in both"
            )

    @property
    @override
    def batch_size(self) -> int | None:
        keys, queries = _size(self.kv_lengths), _size(self.q_lengths)
        return queries if keys is None or (keys == 1 and queries is not None) else keys

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        ends = None if self.q_lengths is None else _pick(self.q_lengths, batch)
        return Lengths(_pick(self.kv_lengths, batch), ends)

    @override
    def thinned(self, step: int, residue: int, grid: Grid) -> Pattern:
        first = grid.kv_offset + residue
        ends = None if self.q_lengths is None else _thinned(self.q_lengths, step, first)
        return Lengths(_thinned(self.kv_lengths, step, first), ends)

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        real = torch.ones_like(q_pos, dtype=torch.bool)
        if self.q_lengths is not None:
            real = real & (q_pos < _limit(self.q_lengths))
        seen: Allowed = kv_pos < _limit(self.kv_lengths)
        return real & seen

    @override
    def reach(self, runs: Runs) -> Reach:
        keys = constant(intervals.between(-FAR, self.kv_lengths))
        if self.q_lengths is None:
            return Reach(keys, keys)
        return Reach(
            where(runs.first < self.q_lengths, keys), where(runs.last < self.q_lengths, keys)
        )

    @override
    def row(self, position: int) -> Intervals | None:
        real = self.q_lengths is None or position < self.q_lengths
        return intervals.between(-FAR, self.kv_lengths) if real else intervals.NOTHING

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        keys: Tensor = (self.kv_lengths - key).clamp(0, KEY_TILE)
        if self.q_lengths is None:
            return keys.unsqueeze(1)
        return torch.stack([keys, (self.q_lengths - query).clamp(0, QUERY_TILE)], 1)

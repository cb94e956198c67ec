"""Sequences with a special beginning or a cut end: prefixes and lengths."""

from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns.base import Pattern, Reach
from headwise.patterns.counts import Counts, Settled, whole_numbers
from headwise.patterns.intervals import FAR, NOTHING, between


def _counts(name: str, numbers: Counts) -> Settled:
    """Return one count for all samples, or a tuple with one per sample."""
    counts = whole_numbers(name, numbers)
    if min([counts] if isinstance(counts, int) else counts, default=0) < 0:
        raise PatternError(f"{name} must not be negative, got {counts}\n  hint: 0 means no token")
    return counts


def _pick(counts: Settled, batch: int) -> int:
    if isinstance(counts, int):
        return counts
    return counts[batch if len(counts) > 1 else 0]


def _size(*fields: Settled | None) -> int | None:
    return max((len(counts) for counts in fields if isinstance(counts, tuple)), default=None)


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
        seen: Allowed = kv_pos < self.length
        return seen & torch.ones_like(q_pos, dtype=torch.bool)

    @override
    def reach(self, first: int, last: int) -> Reach:
        seen = between(-FAR, self.length)
        return Reach(seen, seen)


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_lengths", _counts("Lengths: kv_lengths", self.kv_lengths))
        if self.q_lengths is None:
            return
        object.__setattr__(self, "q_lengths", _counts("Lengths: q_lengths", self.q_lengths))
        sizes = {_size(self.kv_lengths), _size(self.q_lengths)} - {None, 1}
        if len(sizes) > 1:
            raise PatternError(
                "Lengths: kv_lengths and q_lengths must name the same samples, "
                f"got {_size(self.kv_lengths)} and {_size(self.q_lengths)}\n"
                "  hint: give one length per sample in both"
            )

    @property
    @override
    def batch_size(self) -> int | None:
        return _size(self.kv_lengths, self.q_lengths)

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        ends = None if self.q_lengths is None else _pick(self.q_lengths, batch)
        return Lengths(_pick(self.kv_lengths, batch), ends)

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        real = torch.ones_like(q_pos, dtype=torch.bool)
        if self.q_lengths is not None:
            real = real & (q_pos < self.q_lengths)
        seen: Allowed = kv_pos < self.kv_lengths
        return real & seen

    @override
    def reach(self, first: int, last: int) -> Reach:
        keys = between(-FAR, self.kv_lengths)
        ends = FAR if self.q_lengths is None else self.q_lengths
        return Reach(keys if first < ends else NOTHING, keys if last < ends else NOTHING)

"""Sequences made of pieces: prefixes, padding at the end, several documents in a row."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from typing_extensions import override

import torch
from torch import Tensor

from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns.base import Pattern, Reach
from headwise.patterns.content import Content, Numbers
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import EVERYTHING, FAR, NOTHING, Intervals, between

Counts = int | Tensor | Sequence[int]


def _counts(caller: str, name: str, numbers: Counts) -> int | tuple[int, ...]:
    """Return one count for all samples, or a tuple with one per sample."""
    if isinstance(numbers, Tensor):
        if numbers.is_floating_point() or numbers.is_complex() or numbers.ndim > 1:
            raise PatternError(
                f"{caller}: {name} must be an int or a 1-D integer tensor (batch,), "
                f"got shape {tuple(numbers.shape)} {numbers.dtype}\n"
                "  hint: give one length per sample, in tokens"
            )
        numbers = numbers.tolist()
    counts = numbers if isinstance(numbers, int) else tuple(int(n) for n in numbers)
    if min([counts] if isinstance(counts, int) else counts, default=0) < 0:
        raise PatternError(
            f"{caller}: {name} must not be negative, got {counts}\n  hint: 0 means no token"
        )
    return counts


def _pick(counts: Any, batch: int) -> Any:
    if counts is None or isinstance(counts, int):
        return counts
    return counts[batch if len(counts) > 1 else 0]


def _size(*fields: Any) -> int | None:
    sizes = [len(counts) for counts in fields if counts is not None and not isinstance(counts, int)]
    return max(sizes, default=None)


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
        object.__setattr__(self, "length", _counts("Prefix", "length", self.length))

    @property
    @override
    def batch_size(self) -> int | None:
        return _size(self.length)

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        return Prefix(_pick(self.length, batch))

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        return (kv_pos < self.length) & torch.ones_like(q_pos, dtype=torch.bool)

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
        object.__setattr__(self, "kv_lengths", _counts("Lengths", "kv_lengths", self.kv_lengths))
        if self.q_lengths is None:
            return
        object.__setattr__(self, "q_lengths", _counts("Lengths", "q_lengths", self.q_lengths))
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
        return Lengths(_pick(self.kv_lengths, batch), _pick(self.q_lengths, batch))

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        real = torch.ones_like(q_pos, dtype=torch.bool)
        if self.q_lengths is not None:
            real = q_pos < self.q_lengths
        return real & (kv_pos < self.kv_lengths)

    @override
    def reach(self, first: int, last: int) -> Reach:
        keys = between(-FAR, self.kv_lengths)
        ends = FAR if self.q_lengths is None else self.q_lengths
        return Reach(keys if first < ends else NOTHING, keys if last < ends else NOTHING)


@dataclass(frozen=True)
class Documents(Pattern):
    """Packed sequences: a query sees the keys of its own document.

    Args:
        ids: Document number of every position, (length,) or (batch, length), integers. A negative
            number marks padding, which neither sees nor is seen.
        kv_ids: Document numbers of the keys where they are other tokens than the queries (cross
            attention); ``None`` = the same as ``ids``.

    Raises:
        PatternError: Numbers that are no integers or have more than two dimensions; when used, a
            call with positions that ``ids`` does not reach.
    """

    ids: Any
    kv_ids: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _document_ids("ids", self.ids))
        if self.kv_ids is None:
            return
        object.__setattr__(self, "kv_ids", _document_ids("kv_ids", self.kv_ids))
        sizes = {c.tensor.shape[0] for c in (self.ids, self.kv_ids) if c.tensor.ndim == 2} - {1}
        if len(sizes) > 1:
            raise PatternError(
                f"Documents: ids and kv_ids must name the same samples, got {sorted(sizes)}\n"
                "  hint: give one row of document numbers per sample in both"
            )

    @staticmethod
    def from_cu_seqlens(q: Numbers, kv: Numbers | None = None) -> "Documents":
        """Build from cumulative lengths (0, first end, second end, …), as flash-attention has them.

        Args:
            q: Cumulative lengths of the queries, (documents + 1,) integers that start at 0.
            kv: The same for the keys; ``None`` = the same as ``q``.
        """
        return Documents(_numbered("q", q), None if kv is None else _numbered("kv", kv))

    @property
    @override
    def batch_size(self) -> int | None:
        parts = (self.ids, self.kv_ids or self.ids)
        return max((c.tensor.shape[0] for c in parts if c.tensor.ndim == 2), default=None)

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        if self.batch_size is None:
            return self
        return Documents(_row(self.ids, batch), _row(self.kv_ids, batch))

    @override
    def placed(self, grid: Grid) -> Pattern:
        for name, ids, first, count in (
            ("queries", self.ids, grid.q_offset, grid.q_len),
            ("keys", self.kv_ids or self.ids, grid.kv_offset, grid.kv_len),
        ):
            known = ids.tensor.shape[0]
            if count and not 0 <= first <= first + count <= known:
                raise PatternError(
                    f"Documents: {name} stand at positions {first} to {first + count - 1}, "
                    f"but document numbers are given for 0 to {known - 1}\n"
                    "  hint: give one number per absolute position, cached tokens included"
                )
        return self

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        mine = self.ids.tensor[q_pos]
        theirs = (self.kv_ids or self.ids).tensor[kv_pos]
        return (mine == theirs) & (mine >= 0)

    @override
    def reach(self, first: int, last: int) -> Reach:
        wanted = set(self._q_numbers[max(first, 0) : last + 1])
        real = [number for number in wanted if number >= 0]
        pieces = [piece for number in real for piece in self._places.get(number, ())]
        maybe = tuple(sorted(pieces))
        return Reach(maybe, maybe if len(wanted) == len(real) == 1 else NOTHING)

    @cached_property
    def _q_numbers(self) -> list[int]:
        return self.ids.tensor.tolist()  # type: ignore[no-any-return]

    @cached_property
    def _places(self) -> dict[int, list[tuple[int, int]]]:
        """Where the keys of each document stand."""
        numbers = (self.kv_ids or self.ids).tensor
        found: dict[int, list[tuple[int, int]]] = {}
        values, counts = torch.unique_consecutive(numbers, return_counts=True)
        start = 0
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            found.setdefault(value, []).append((start, start + count))
            start += count
        return found


def _document_ids(name: str, numbers: Any) -> Content:
    if isinstance(numbers, Content):
        return numbers
    source = torch.as_tensor(numbers)
    wrong = source.is_floating_point() or source.is_complex() or source.dtype == torch.bool
    if source.numel() and wrong or source.ndim not in (1, 2):
        raise PatternError(
            f"Documents: {name} must be integers of shape (length,) or (batch, length), "
            f"got shape {tuple(source.shape)} {source.dtype}\n"
            "  hint: give every token the number of its document, padding a negative one"
        )
    return Content(source, torch.int64)


def _numbered(name: str, ends: Numbers) -> Tensor:
    ends = torch.as_tensor(ends)
    lengths = ends.diff()
    if ends.ndim != 1 or not ends.numel() or int(ends[0]) != 0 or bool((lengths < 0).any()):
        raise PatternError(
            f"Documents.from_cu_seqlens: {name} must start at 0 and never fall, "
            f"got {ends.tolist()}\n  hint: give (0, end of the first document, …, total length)"
        )
    return torch.repeat_interleave(torch.arange(lengths.numel()), lengths.to("cpu", torch.int64))


def _row(ids: Content | None, batch: int) -> Tensor | None:
    if ids is None or ids.tensor.ndim == 1:
        return None if ids is None else ids.tensor
    return ids.tensor[batch if ids.tensor.shape[0] > 1 else 0]

"""Several documents packed in a row."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns.base import Pattern
from headwise.patterns.content import Content, Numbers, as_tensor, is_traced
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import NOTHING, Intervals
from headwise.patterns.spans import Reach, Runs, between
from headwise.patterns.tiles import KEY_TILE, QUERY_TILE


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

    _alike: ClassVar[tuple[int, ...]] = (1, 1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _document_ids("ids", self.ids))
        if self.kv_ids is None:
            return
        object.__setattr__(self, "kv_ids", _document_ids("kv_ids", self.kv_ids))
        queries, keys = _samples(self.ids), _samples(self.kv_ids)
        if queries not in (None, 1) and keys not in (None, 1) and queries != keys:
            raise PatternError(
                "Documents: ids and kv_ids must name the same samples, "
                f"got {sorted(size for size in (queries, keys) if size)}\n"
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
        queries, keys = _samples(self.ids), _samples(self._keys)
        return keys if queries is None or (queries == 1 and keys is not None) else queries

    @property
    def _keys(self) -> Content:
        found: Content = self.ids if self.kv_ids is None else self.kv_ids
        return found

    @property
    @override
    def nbytes(self) -> int:
        held: int = self.ids.nbytes + (0 if self.kv_ids is None else self.kv_ids.nbytes)
        return held

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        if self.batch_size is None:
            return self
        return Documents(_row(self.ids, batch), _row(self.kv_ids, batch))

    @override
    def placed(self, grid: Grid) -> Pattern:
        for name, ids, first, count in (
            ("queries", self.ids, grid.q_offset, grid.q_len),
            ("keys", self._keys, grid.kv_offset, grid.kv_len),
        ):
            known = ids.tensor.shape[0]
            if count and not 0 <= first <= first + count <= known:
                raise PatternError(
                    f"Documents: {name} stand at positions {first} to {first + count - 1}, "
                    f"but document numbers are given for 0 to {known - 1}\n"
                    "  hint: give one number per absolute position, cached tokens included; "
                    "queries numbered apart from the keys need q_offset=0"
                )
        return self

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        mine: Tensor = self.ids.on(q_pos.device)[q_pos]
        theirs: Tensor = self._keys.on(kv_pos.device)[kv_pos]
        return (mine == theirs) & (mine >= 0)

    @override
    def reach(self, runs: Runs) -> Reach:
        rows = runs.every()
        low, high, whole = (edge[rows] for edge in self._edges)
        numbers = self.ids.tensor[rows]
        alike = (numbers == numbers[:, :1]).all(1) & whole.all(1)
        low, high = low.amin(1), high.amax(1)
        return Reach(between(low, high), between(low, torch.where(alike, high, low)))

    @override
    def row(self, position: int) -> Intervals | None:
        number = self._q_numbers[position]
        return tuple(self._places.get(number, ())) if number >= 0 else NOTHING

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        rows = query.unsqueeze(1) + torch.arange(QUERY_TILE, device="cpu")
        low, high, whole = (edge[rows.clamp(max=len(edge) - 1)] for edge in self._edges)
        start = key.unsqueeze(1)
        seen = (low - start).clamp(0, KEY_TILE) << 8 | (high - start).clamp(0, KEY_TILE)
        # Three rows, 16 bits each, fit in one number.
        a, b, c = seen.view(-1, QUERY_TILE // 3, 3).unbind(2)
        apart = torch.where(whole.all(1), -1, torch.arange(len(query), device="cpu"))
        return torch.cat([a << 32 | b << 16 | c, apart.unsqueeze(1)], 1)

    @cached_property
    def _edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """For every query: its first key, behind its last one, whether it sees all between them.

        A query without keys has a first one behind all others.
        """
        numbers, ids = self._keys.tensor, self.ids.tensor
        values, places, counts = torch.unique(numbers, return_inverse=True, return_counts=True)
        stand = torch.arange(len(numbers), device="cpu")
        low = torch.full_like(values, len(numbers)).scatter_reduce(0, places, stand, "amin")
        high = torch.zeros_like(values).scatter_reduce(0, places, stand + 1, "amax")
        known = len(values)
        found = torch.searchsorted(values, ids).clamp(max=max(known - 1, 0))
        if not known:
            return (
                torch.zeros_like(ids),
                torch.zeros_like(ids),
                torch.zeros_like(ids, dtype=torch.bool),
            )
        real = (values[found] == ids) & (ids >= 0)
        return (
            low[found].masked_fill(~real, len(numbers)),
            high[found].masked_fill(~real, 0),
            ~real | (high - low == counts)[found],
        )

    @cached_property
    def _q_numbers(self) -> list[int]:
        return self.ids.tensor.tolist()  # type: ignore[no-any-return]

    @cached_property
    def _places(self) -> dict[int, list[tuple[int, int]]]:
        """Where the keys of each document stand."""
        numbers = self._keys.tensor
        found: dict[int, list[tuple[int, int]]] = {}
        values, counts = torch.unique_consecutive(numbers, return_counts=True)
        start = 0
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            found.setdefault(value, []).append((start, start + count))
            start += count
        return found


def _samples(ids: Content | None) -> int | None:
    return ids.tensor.shape[0] if ids is not None and ids.tensor.ndim == 2 else None


def _document_ids(name: str, numbers: Numbers | Content) -> Content:
    if isinstance(numbers, Content):
        return numbers
    source = as_tensor(numbers, f"Documents: {name}")
    wrong = source.is_floating_point() or source.is_complex() or source.dtype == torch.bool
    if (source.numel() and wrong) or source.ndim not in (1, 2):
        raise PatternError(
            f"Documents: {name} must be integers of shape (length,) or (batch, length), "
            f"got shape {tuple(source.shape)} {source.dtype}\n"
            "  hint: give every token the number of its document, padding a negative one"
        )
    return Content(source, torch.int64)


def _numbered(name: str, ends: Numbers) -> Tensor:
    ends = as_tensor(ends, f"Documents.from_cu_seqlens: {name}").to("cpu")
    if is_traced(ends):
        raise PatternError(
            f"Documents.from_cu_seqlens: {name} is being traced, so the number of tokens is not "
            "known\n  hint: build the pattern outside, or give Documents(ids) a number per token"
        )
    lengths = ends.diff()
    if ends.ndim != 1 or not ends.numel() or int(ends[0]) != 0 or bool((lengths < 0).any()):
        raise PatternError(
            f"Documents.from_cu_seqlens: {name} must start at 0 and never fall, "
            f"got {ends.tolist()}\n  hint: give (0, end of the first document, …, total length)"
        )
    return torch.repeat_interleave(
        torch.arange(lengths.numel(), device="cpu"), lengths.to(torch.int64)
    )


def _row(ids: Content | None, batch: int) -> Tensor | None:
    if ids is None or ids.tensor.ndim == 1:
        return None if ids is None else ids.tensor
    return ids.tensor[batch if ids.tensor.shape[0] > 1 else 0]

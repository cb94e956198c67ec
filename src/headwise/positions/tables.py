"""Rows of numbers that depend on a position alone: computed once, kept, grown by doubling."""

from collections.abc import Hashable
from threading import Lock
from typing import NamedTuple, Protocol, runtime_checkable
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from headwise.positions.offsets import positions

LARGEST = 1 << 25  # numbers of a table; what does not fit is computed at the call


@runtime_checkable
class Formula(Hashable, Protocol):
    """What the row of a position holds; equal formulas share one table."""

    @property
    def width(self) -> int:
        """Numbers in a row."""

    def rows(self, places: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the row of each position, (..., width), rounded once to ``dtype``."""

    def parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the views of rows that are worked with."""


class _Kept(NamedTuple):
    """Rows of all positions from ``first`` on."""

    first: int
    rows: Tensor


class _Answer(NamedTuple):
    """The last answer; the query, the key and the layers of a model ask the same again."""

    offset: int | tuple[int, ...]
    length: int
    parts: tuple[Tensor, ...]


class Table:
    """The rows of one formula, per device and dtype. It is no state: a copy of it is itself."""

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        self._kept: dict[tuple[torch.device, torch.dtype], _Kept] = {}
        self._last: dict[tuple[torch.device, torch.dtype], _Answer] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[object, tuple[Formula]]:
        """Leave the numbers behind in copies and pickles."""
        return table_of, (self.formula,)

    def parts(
        self, offset: int | Tensor, length: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        """Return the rows of ``length`` tokens, (length, …) or (samples, length, …)."""
        where = device, dtype
        asked = offset if isinstance(offset, int) else tuple(offset.tolist())
        last = self._last.get(where)
        if last is not None and last.length == length and last.offset == asked:
            return last.parts
        with torch.inference_mode(False), torch.no_grad():
            rows = self._rows(asked, length, where)
            found = self.formula.parts(rows)
        if rows.numel() <= LARGEST:
            self._last[where] = _Answer(asked, length, found)
        return found

    def _rows(
        self,
        offset: int | tuple[int, ...],
        length: int,
        where: tuple[torch.device, torch.dtype],
    ) -> Tensor:
        starts = (offset,) if isinstance(offset, int) else offset
        device, dtype = where
        first, end = min(starts, default=0), max(starts, default=0) + length
        if (end - first) * self.formula.width > LARGEST:
            places = positions(
                offset if isinstance(offset, int) else torch.tensor(offset, device=device),
                length,
                device,
            )
            return self.formula.rows(places, dtype)
        kept = self._covering(first, end, where)
        if isinstance(offset, int):
            return kept.rows[first - kept.first : end - kept.first]
        begins = torch.tensor(starts, dtype=torch.int64, device=device) - kept.first
        return kept.rows[positions(begins, length, device)]

    def _covering(self, first: int, end: int, where: tuple[torch.device, torch.dtype]) -> _Kept:
        """Return kept rows that hold the positions from ``first`` up to ``end``."""
        with self._lock:
            kept = self._kept.get(where)
            if kept is not None:
                size = len(kept.rows)
                if kept.first <= first and end <= kept.first + size:
                    return kept
                low, high = min(first, kept.first), max(end, kept.first + size)
                near = high - low <= 2 * (size + end - first)
                if near and (high - low) * self.formula.width <= LARGEST:
                    most = low + LARGEST // self.formula.width
                    first, end = low, min(max(high, low + 2 * size), most)
            device, dtype = where
            places = positions(first, end - first, device)
            self._kept[where] = kept = _Kept(first, self.formula.rows(places, dtype))
            return kept


_tables: WeakValueDictionary[Formula, Table] = WeakValueDictionary()
_making = Lock()


def table_of(formula: Formula) -> Table:
    """Return the table of a formula; equal layers share one while one of them lives."""
    with _making:
        table = _tables.get(formula)
        if table is None:
            _tables[formula] = table = Table(formula)
        return table


def keeps_nothing(*tensors: Tensor | int | None) -> bool:
    """Say whether numbers must be computed in the call: something follows torch's operations.

    That is a compiler, an export, a mode, a transform of ``torch.func``, forward mode, or a tensor
    whose numbers are not there to be read or would be waited for.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    if torch._C._are_functorch_transforms_active() or torch._C._is_tracing():
        return True
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    return any(isinstance(t, Tensor) and not t.is_cpu for t in tensors)

"""Storage for one layer in pages of a pool, shared where rows begin alike."""

from itertools import islice
from operator import add
from typing import TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from headwise.cache.pool import PagePool
from headwise.cache.room import blanked, token_indices
from headwise.cache.row_counts import RowCounts, each, listed, picked
from headwise.cache.row_formats import RowFormat, Tensors, as_stored
from headwise.cache.storage import (
    Given,
    Held,
    HeldWhole,
    State,
    Storage,
    Stored,
    is_tracked,
    refuse_gradients,
)
from headwise.errors import CacheError
from headwise.ops import StoredKeys

# The pages of every row, in the order of its tokens.
Table: TypeAlias = tuple[tuple[int, ...], ...]


class HeldPages(HeldWhole):
    """All tokens of a layer, in pages that may get other tokens before they are read."""

    def __init__(
        self, given: Given, lengths: RowCounts, whole: StoredKeys, pool: PagePool, table: Table
    ) -> None:
        super().__init__(given, lengths, whole)
        self._pool = pool
        self._table = table

    @override
    def stored(self) -> Stored:
        taken = self._pool.taken

        def read() -> tuple[Tensor, Tensor]:
            pages = _all(self._table)
            with self._pool.lock:
                if self._pool.last_taken(pages) > taken:
                    raise CacheError(
                        "KVCache.stored: pages must still hold what is read, and some of "
                        f"{len(pages)} were given to others or written over since\n"
                        "  hint: read key and value before the cache is cropped, reset or dropped"
                    )
                return self._plain()

        return Stored(read)


class PagedStorage(Storage):
    """Keys and values of one layer in pages; a page of several holders is never written to."""

    def __init__(self, form: RowFormat, pool: PagePool) -> None:
        super().__init__(form)
        self._pool = pool
        self._table: Table = ()
        self._pages: Tensor | None = None
        self._is_cut = False

    def __del__(self) -> None:
        # A tracer makes objects whose __init__ never ran.
        pool: PagePool | None = getattr(self, "_pool", None)
        if pool is not None:
            pool.drop(_all(self._table))

    @property
    @override
    def nbytes(self) -> int:
        return len(set(_all(self._table))) * self._pool.page_nbytes

    @override
    def append(
        self, key: Tensor, value: Tensor, given: Given, counts: RowCounts, *, tracked: bool
    ) -> Held:
        if is_tracked(tracked, key, value):
            raise refuse_gradients("pages", "pool")
        fresh = self.form.encode(key, value)
        ends = each(add, self.lengths, counts)
        with self._pool.lock:
            self._put(given, fresh, ends, counts)
            return self.held()

    @override
    def held(self) -> Held:
        assert self.given is not None
        with self._pool.lock:
            whole = self._stored()
        return HeldPages(self.given, self.lengths, whole, self._pool, self._table)

    @property
    @override
    def state(self) -> State:
        return self.lengths, self.given, self._table

    @override
    def restore(self, state: State) -> None:
        lengths, given, table = state
        with self._pool.lock:
            self._pool.share(_all(table))
            before = self._table
            self.lengths, self.given, self._is_cut = lengths, given, True
            self._set_table(table)
            self._pool.release(_all(before))

    @override
    def forget(self) -> None:
        self.restore((0, None, ()))

    @override
    def crop(self, length: int) -> None:
        page = self._pool.page
        lengths = each(lambda held: min(held, length), self.lengths)
        each_row = listed(lengths, len(self._table))
        kept = [-(-count // page) for count in each_row]
        table = tuple(row[:count] for row, count in zip(self._table, kept, strict=True))
        self.restore((lengths, self.given, table))

    @override
    def reorder(self, index: Tensor) -> None:
        if self.given is None:
            return
        table = tuple(self._table[row] for row in index.tolist())
        given = self.given._replace(batch=len(table))
        self.restore((picked(self.lengths, index), given, table))

    @override
    def fork(self) -> "PagedStorage":
        self._pool.share(_all(self._table))
        return super().fork()

    @override
    def dump(self) -> tuple[Tensors, dict[str, RowCounts]]:
        with self._pool.lock:
            stored, held = self._stored(), self._pool.tensors
        tensors = tuple(stored.in_order(tensor) for tensor in held)
        return blanked(tensors, self.lengths), {"lengths": self.lengths}

    @override
    def fill(self, given: Given, tensors: Tensors, counts: dict[str, RowCounts]) -> None:
        with self._pool.lock:
            self._put(given, tensors, counts["lengths"], counts["lengths"])

    def _put(self, given: Given, fresh: Tensors, ends: RowCounts, counts: RowCounts) -> None:
        """Write tokens behind those of each row; the pool is locked."""
        before = self._table
        self._pool.check(fresh)
        each_end = listed(ends, given.batch)
        self._give_pages(fresh, each_end)
        try:
            self._renew(each_end)
            self._write(fresh, counts)
        except BaseException:
            self.restore((self.lengths, self.given, before))
            raise
        self.lengths, self.given = ends, given

    def _stored(self) -> StoredKeys:
        return as_stored(self._pool.tensors, self._page_table(), self.length)

    def _page_table(self) -> Tensor:
        """Return the pages of every row, (batch, pages) int32; those of short rows end in 0."""
        if not self._table:
            width = -(-self.length // self._pool.page)
            return torch.empty((0, width), dtype=torch.int32, device="cpu")
        if self._pages is None:
            widest = max((len(row) for row in self._table), default=0)
            rows = [(*row, *[0] * (widest - len(row))) for row in self._table]
            pages = torch.tensor(rows, dtype=torch.int32, device="cpu")
            self._pages = pages.view(len(rows), widest)
        return self._pages

    def _set_table(self, table: Table) -> None:
        self._table, self._pages = table, None

    def _give_pages(self, rows: Tensors, ends: list[int]) -> None:
        """Let every row have pages up to its end, and its last one for itself; or refuse."""
        pool, page = self._pool, self._pool.page
        table = self._table or ((),) * len(ends)
        starts = listed(self.lengths, len(ends))
        new = [-(-end // page) - len(held) for end, held in zip(ends, table, strict=True)]
        shared = self._shared_ends(table, starts, ends)
        if self._table and pool.tensors and not shared and not any(new):
            return
        given: list[int] = []
        try:
            pool.take(len(shared) + sum(new), rows, given)
            taken = iter(given)
            found = [list(held) for held in table]
            for row in shared:
                found[row][-1] = next(taken)
                pool.copy(table[row][-1], found[row][-1])
            rows_found = zip(found, new, strict=True)
            whole = tuple((*held, *islice(taken, count)) for held, count in rows_found)
        except BaseException:
            pool.release(given)
            raise
        self._set_table(whole)
        pool.release([table[row][-1] for row in shared])

    def _renew(self, ends: list[int]) -> None:
        """Note that pages get other tokens where some were taken back before."""
        if not self._is_cut:
            return
        starts = listed(self.lengths, len(ends))
        rows = zip(self._table, starts, ends, strict=True)
        page = self._pool.page
        self._pool.renew([row[at // page] for row, at, end in rows if at % page and end > at])
        self._is_cut = False

    def _shared_ends(self, table: Table, starts: list[int], ends: list[int]) -> list[int]:
        """Return the rows that go on in a page of several holders; the last holder may keep it."""
        found = []
        holders: dict[int, int] = {}
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if end == start or not start % self._pool.page:
                continue
            last = table[row][-1]
            count = holders.get(last, self._pool.holders(last))
            if count > 1:
                holders[last] = count - 1
                found.append(row)
        return found

    def _write(self, rows: Tensors, counts: RowCounts) -> None:
        """Write new tokens to the pages that rows have for them."""
        if not rows[0].shape[0]:
            return
        table, device, page = self._page_table(), rows[0].device, self._pool.page
        if isinstance(counts, int) and isinstance(self.lengths, int):
            end, start = self.lengths + counts, self.lengths
            for low in range(start - start % page, end, page):
                part = slice(max(low, start), min(low + page, end))
                new = tuple([row[:, :, part.start - start : part.stop - start] for row in rows])
                pages = table[:, low // page].long().to(device)
                self._pool.write(new, pages, slice(part.start - low, part.stop - low))
            return
        row, token, place = token_indices(counts, 0, self.lengths, rows[0].shape[0])
        pages = table[row, place // page].long().to(device)
        row, token, place = (index.to(device) for index in (row, token, place % page))
        self._pool.write(tuple(new[row, :, token] for new in rows), pages, place)


def _all(table: Table) -> list[int]:
    return [number for row in table for number in row]

"""Pages of tokens that sequences, layers and caches share."""

import os
from collections import deque
from collections.abc import Iterable
from threading import RLock
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from headwise._checks import is_int
from headwise.cache.room import room_like
from headwise.cache.row_formats import Tensors
from headwise.errors import CacheError

# Tokens that a page holds a multiple of: as many as the kernels take at a time.
_PAGE = 128
_FIRST_PAGES = 16

_POOLS: "WeakSet[PagePool]" = WeakSet()


class PagePool:
    """Memory in pages of tokens, given out to the caches built with ``pool=``.

    Sequences that begin alike share the pages of their beginning: those of a ``fork()``, and of
    beams after a ``reorder``. A shared page is copied before one of them writes to it. Pages of a
    cache come back when it is cropped, reset or no longer used. What a page holds, heads, widths
    and dtype, follows from the first tokens stored; all layers and caches of a pool are alike, and
    only a pool that holds nothing takes others. Caches of one pool may run in several threads.

    Args:
        pages: How many pages there are, allocated at the first call; a call that needs more is
            refused. ``None`` = the pool grows, doubling.
        page: Tokens of a page, a multiple of 128.

    Raises:
        CacheError: Another number of pages or tokens.

    Example:
        >>> import torch, headwise as hw
        >>> pool = hw.PagePool(8)
        >>> cache = hw.KVCache(pool=pool)
        >>> _ = cache.append(torch.ones(1, 2, 300, 16), torch.ones(1, 2, 300, 16))
        >>> twin = cache.fork()
        >>> pool.used, pool.free
        (3, 5)
    """

    def __init__(self, pages: int | None = None, *, page: int = _PAGE) -> None:
        if pages is not None and (not is_int(pages) or pages < 1):
            raise CacheError(
                f"PagePool: pages must be an int of at least 1, or None, got {pages!r}\n"
                "  hint: leave pages out for a pool that grows"
            )
        if not is_int(page) or page < 1 or page % _PAGE:
            raise CacheError(
                f"PagePool: page must be a multiple of {_PAGE} tokens, got {page!r}\n"
                f"  hint: {_PAGE} tokens waste the least at the end of a sequence"
            )
        self.pages = pages
        self.page = page
        self.tensors: Tensors = ()
        self._holders: list[int] = []
        self._free: list[int] = []
        self._taken_at: dict[int, int] = {}
        self.taken = 0
        # Guards all of the above. What storages that die hold comes back later, at a safe place.
        self.lock = RLock()
        self._dropped: deque[list[int]] = deque()
        _POOLS.add(self)

    @property
    def used(self) -> int:
        """Pages that hold tokens of some cache."""
        with self.lock:
            self._collect()
            return len(self._holders) - len(self._free)

    @property
    def free(self) -> int | None:
        """Pages that can still be given out; ``None`` for a pool that grows."""
        return None if self.pages is None else self.pages - self.used

    @property
    def nbytes(self) -> int:
        """Memory held, free pages included, in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def page_nbytes(self) -> int:
        """Memory of one page, in bytes; 0 before the first tokens."""
        return self.nbytes // max(len(self._holders), 1)

    def __repr__(self) -> str:
        size = "growing" if self.pages is None else str(self.pages)
        return f"PagePool({size}, page={self.page}, used={self.used}, {self.nbytes:,} bytes)"

    def __deepcopy__(self, memo: dict[int, Any]) -> "PagePool":
        """Return the pool itself: copies of caches go on in the pool of the caches."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Make an empty pool of the same sizes; pages belong to caches of this process."""
        return _made, (self.pages, self.page)

    def check(self, rows: Tensors) -> None:
        """Refuse tokens of other heads, widths, dtypes or devices than those of the pool."""
        with self.lock:
            if not self.tensors or _kinds(rows) == _kinds(self.tensors):
                return
            if not self.used:
                self.tensors, self._holders, self._free = (), [], []
                return
            held, new = (_named(kinds) for kinds in (_kinds(self.tensors), _kinds(rows)))
            raise CacheError(
                f"PagePool: tokens must be like those that the pages hold, {held}, got {new}\n"
                "  hint: give layers or models of another shape a pool of their own"
            )

    def take(self, count: int, rows: Tensors, given: list[int]) -> None:
        """Give out pages with one holder each; none is lost where that is interrupted.

        Args:
            count: How many.
            rows: Shows what they are to hold.
            given: Takes their numbers.

        Raises:
            CacheError: The pool has not enough of them; none is given out then.
        """
        with self.lock:
            self._collect()
            missing = count - len(self._free)
            if missing > 0 or not self.tensors:
                self._grow(max(missing, 0), rows, count)
            left = len(self._free) - count
            taken = self._free[left:][::-1]
            for number in taken:
                self._holders[number] = 1
            self.renew(taken)
            given += taken
            del self._free[left:]

    def renew(self, numbers: list[int]) -> None:
        """Note that what pages held before is no longer to be read."""
        with self.lock:
            for number in numbers:
                self.taken += 1
                self._taken_at[number] = self.taken

    def share(self, numbers: list[int]) -> None:
        """Note one more holder of each page."""
        with self.lock:
            for number in numbers:
                self._holders[number] += 1

    def release(self, numbers: Iterable[int]) -> None:
        """Note one holder less of each page; what nobody holds is free."""
        with self.lock:
            for number in numbers:
                self._holders[number] -= 1
                if not self._holders[number]:
                    self._free += [number]

    def drop(self, numbers: list[int]) -> None:
        """Release pages from a finalizer, which may run in the midst of anything."""
        self._dropped.append(numbers)

    def _collect(self) -> None:
        """Release what was dropped."""
        while self._dropped:
            self.release(self._dropped.popleft())

    def holders(self, number: int) -> int:
        """Say how many sequences hold a page."""
        with self.lock:
            self._collect()
        return self._holders[number]

    def last_taken(self, numbers: list[int]) -> int:
        """Return what ``taken`` was when the last of some pages was given out."""
        return max((self._taken_at.get(number, 0) for number in numbers), default=0)

    def copy(self, source: int, target: int) -> None:
        """Copy the contents of a page to another."""
        with self.lock:
            for tensor in self.tensors:
                tensor[target] = tensor[source]

    def write(self, rows: Tensors, pages: Tensor, places: Tensor | slice) -> None:
        """Write tokens to their places in their pages.

        Args:
            rows: With a slice of places (pages, kv_heads, tokens, …); with a place for each of the
                pages (pages, kv_heads, …).
            pages: Numbers of pages.
            places: Where in them.
        """
        with self.lock:
            for tensor, new in zip(self.tensors, rows, strict=True):
                tensor[pages, :, places] = new

    def _grow(self, missing: int, rows: Tensors, asked: int) -> None:
        held = len(self._holders)
        if self.pages is not None and held + missing > self.pages:
            raise CacheError(
                f"PagePool: all {self.pages} pages are in use but {self.pages - self.used}, and "
                f"{asked} more are needed\n"
                "  hint: reset or drop caches that are done, or build a larger pool"
            )
        room = self.pages or max(held + missing, 2 * held, _FIRST_PAGES)
        like = tuple(
            row.new_empty((1, *row.shape[1:])).expand(room, *row.shape[1:]) for row in rows
        )
        tensors = room_like(like, self.page).tensors
        for new, old in zip(tensors, self.tensors, strict=False):
            new[:held] = old
        self.tensors = tensors
        self._free += range(room - 1, held - 1, -1)
        self._holders += [0] * (room - held)


def _kinds(rows: Tensors) -> list[tuple[int, torch.Size, torch.dtype, torch.device]]:
    """Return heads, width, dtype and device of what is stored."""
    return [(row.shape[1], row.shape[3:], row.dtype, row.device) for row in rows]


def _named(kinds: list[tuple[int, torch.Size, torch.dtype, torch.device]]) -> str:
    (heads, key_width, dtype, device), (_, value_width, *_), *_ = kinds
    widths = f"{key_width[0]} and {value_width[0]}"
    return f"{heads} heads of {widths} numbers in {dtype} on {device}"


def _made(pages: int | None, page: int) -> PagePool:
    return PagePool(pages, page=page)


def _renew_locks() -> None:
    """Let a forked process go on where another thread of its parent held a lock."""
    for pool in _POOLS:
        pool.lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)

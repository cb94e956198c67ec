"""Pages of tokens that sequences, layers and caches share."""

import torch
from torch import Tensor

from headwise._checks import is_int
from headwise.cache.room import room_like
from headwise.cache.row_formats import Tensors
from headwise.errors import CacheError

# Tokens that a page holds a multiple of: as many as the kernels take at a time.
_PAGE = 128
_FIRST_PAGES = 16


class PagePool:
    """Memory in pages of tokens, given out to the caches built with ``pool=``.

    Sequences that begin alike share the pages of their beginning: those of a ``fork()``, and of
    beams after a ``reorder``. A shared page is copied before one of them writes to it. Pages of a
    cache come back when it is cropped, reset or no longer used. What a page holds, heads, widths
    and dtype, follows from the first tokens stored; all layers and caches of a pool are alike.

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

    @property
    def used(self) -> int:
        """Pages that hold tokens of some cache."""
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

    def check(self, rows: Tensors) -> None:
        """Refuse tokens of other heads, widths, dtypes or devices than those of the pool."""
        if not self.tensors:
            return
        if _kinds(rows) != _kinds(self.tensors):
            held, new = (_named(kinds) for kinds in (_kinds(self.tensors), _kinds(rows)))
            raise CacheError(
                f"PagePool: tokens must be like those that the pages hold, {held}, got {new}\n"
                "  hint: give layers or models of another shape a pool of their own"
            )

    def take(self, count: int, rows: Tensors) -> list[int]:
        """Give out pages with one holder each; ``rows`` shows what they are to hold.

        Raises:
            CacheError: The pool has not enough of them; none is given out then.
        """
        missing = count - len(self._free)
        if missing > 0 or not self.tensors:
            self._grow(max(missing, 0), rows, count)
        taken = [self._free.pop() for _ in range(count)]
        for number in taken:
            self._holders[number] = 1
        return taken

    def share(self, numbers: list[int]) -> None:
        """Note one more holder of each page."""
        for number in numbers:
            self._holders[number] += 1

    def release(self, numbers: list[int]) -> None:
        """Note one holder less of each page; what nobody holds is free."""
        for number in numbers:
            self._holders[number] -= 1
            if not self._holders[number]:
                self._free.append(number)

    def holders(self, number: int) -> int:
        """Say how many sequences hold a page."""
        return self._holders[number]

    def copy(self, source: int, target: int) -> None:
        """Copy the contents of a page to another."""
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
        like = tuple(row[:1].expand(room, *row.shape[1:]) for row in rows)
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

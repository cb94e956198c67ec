"""Which storage the arguments of a cache ask for."""

from typing import NamedTuple

import torch

from headwise._checks import is_int
from headwise.cache.fixed import FixedStorage
from headwise.cache.growing import GrowingStorage
from headwise.cache.paged import PagedStorage
from headwise.cache.pool import PagePool
from headwise.cache.row_formats import row_format
from headwise.cache.storage import Storage
from headwise.cache.window import Sizes, WindowStorage
from headwise.errors import CacheError

_HINTS = {
    "capacity": "leave capacity out for a cache that grows",
    "window": "leave window out for a cache that keeps all tokens",
    "keep_first": "0 keeps none of the first tokens for good",
    "rollback": "0 takes no token back",
}


class Kind(NamedTuple):
    """The arguments of a cache, checked by ``check_kind``."""

    capacity: int | None
    window: int | None
    keep_first: int
    rollback: int
    dtype: torch.dtype | None
    pool: PagePool | None

    def made(self) -> Storage:
        """Return a storage for one layer."""
        form = row_format(self.dtype)
        if self.window is not None:
            return WindowStorage(form, Sizes(self.window, self.keep_first, self.rollback))
        if self.pool is not None:
            return PagedStorage(form, self.pool)
        return GrowingStorage(form) if self.capacity is None else FixedStorage(form, self.capacity)

    def __str__(self) -> str:
        words = [f"capacity={self.capacity}"] if self.capacity is not None else []
        if self.window is not None:
            words += [f"window={self.window}", f"keep_first={self.keep_first}"]
            words += [f"rollback={self.rollback}"]
        if self.pool is not None:
            words.append(repr(self.pool))
        words = words or ["growing"]
        return ", ".join(words if self.dtype is None else [*words, f"dtype={self.dtype}"])


def check_kind(kind: Kind) -> Kind:
    """Return the arguments of a cache, or refuse them."""
    for name, number, least, unit in (
        ("capacity", kind.capacity, 1, "1 token"),
        ("window", kind.window, 1, "1 token"),
        ("keep_first", kind.keep_first, 0, "0 tokens"),
        ("rollback", kind.rollback, 0, "0 tokens"),
    ):
        if number is not None and (not is_int(number) or number < least):
            raise CacheError(
                f"KVCache: {name} must be an int of at least {unit}, got {number!r}\n"
                f"  hint: {_HINTS[name]}"
            )
    if kind.pool is not None and not isinstance(kind.pool, PagePool):
        raise CacheError(
            f"KVCache: pool must be a PagePool, got {kind.pool!r}\n"
            "  hint: pool=headwise.PagePool() gives out pages as they are needed"
        )
    given = [name for name in ("capacity", "window", "pool") if getattr(kind, name) is not None]
    if len(given) > 1:
        raise CacheError(
            f"KVCache: capacity, window and pool exclude each other, got {' and '.join(given)}\n"
            "  hint: they are kinds of room: fixed, for the last tokens, or in pages"
        )
    if kind.keep_first and kind.window is None:
        raise CacheError(
            f"KVCache: keep_first belongs to a window, got keep_first={kind.keep_first} without "
            "one\n  hint: a cache without a window drops no token"
        )
    row_format(kind.dtype)
    return kind

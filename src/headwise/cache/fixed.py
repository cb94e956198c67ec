"""Storage for one layer that is allocated once and never moves."""

from copy import copy

from torch import Tensor
from typing_extensions import override

from headwise.cache.in_room import FromStart
from headwise.cache.room import Room, copied, room_like
from headwise.cache.row_counts import RowCounts, picked
from headwise.cache.row_formats import RowFormat, Tensors
from headwise.cache.storage import refuse_gradients
from headwise.errors import CacheError


class FixedStorage(FromStart):
    """Keys and values in room for ``capacity`` tokens."""

    def __init__(self, form: RowFormat, capacity: int) -> None:
        super().__init__(form)
        self._capacity = capacity

    @override
    def _room_for(self, rows: Tensors, tokens: int) -> Room:
        if tokens > self._capacity:
            raise CacheError(
                f"KVCache: capacity is {self._capacity} tokens, {self.length} are stored and "
                f"{tokens - self.length} more were given\n"
                "  hint: build the cache with a larger capacity, or without one so that it grows"
            )
        return room_like(rows, self._capacity) if self._room is None else self._room

    @override
    def _joined(self, fresh: Tensors, counts: RowCounts, tokens: int) -> Tensors:
        raise refuse_gradients("room that never moves", "capacity")

    @override
    def forget(self) -> None:
        self.crop(0)

    @override
    def check_rows(self, rows: int) -> None:
        if self.given is not None and rows != self.given.batch:
            raise CacheError(
                f"KVCache.reorder: with a fixed capacity the batch stays {self.given.batch} "
                f"samples, got {rows} indices\n  hint: leave out capacity to change the batch"
            )

    @override
    def reorder(self, index: Tensor) -> None:
        if self._room is None:
            return
        for stored in self._filled():
            stored.copy_(stored.index_select(0, index.to(stored.device)))
        self.lengths = picked(self.lengths, index)

    @override
    def fork(self) -> "FixedStorage":
        """Return a storage with room of its own at once, so that this one never moves."""
        twin = copy(self)
        if self._room is not None:
            twin._room = copied(self._room.tensors)
        return twin

"""Storage for one layer that is allocated once and never moves."""

from collections.abc import Callable
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
        room = self._room
        if room is None or (self.given is None and not _fits(rows, room.tensors)):
            return room_like(rows, self._capacity)
        return room

    @override
    def _joined(self, fresh: Tensors, counts: RowCounts, tokens: int) -> Tensors:
        raise refuse_gradients("room that never moves", "capacity")

    @override
    def forget(self) -> None:
        """Keep the room for tokens of the same kind; those of another get room of their own."""
        self.lengths, self.given = 0, None

    @override
    def kept(self) -> Callable[[], None]:
        state = self.state
        return lambda: self.restore(state)

    @override
    def kept_whole(self) -> Callable[[], None]:
        """Return what writes the tokens back, for ``reorder`` writes over them."""
        if self.given is None:
            return self.kept()
        state, tokens = self.state, [stored.clone() for stored in self._filled()]

        def bring_back() -> None:
            self.restore(state)
            for stored, before in zip(self._filled(), tokens, strict=True):
                stored.copy_(before)

        return bring_back

    @override
    def check_rows(self, rows: int) -> None:
        if self.given is not None and rows != self.given.batch:
            raise CacheError(
                f"KVCache.reorder: with a fixed capacity the batch stays {self.given.batch} "
                f"samples, got {rows} indices\n  hint: leave out capacity to change the batch"
            )

    @override
    def reorder(self, index: Tensor) -> None:
        if self.given is None:
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


def _fits(rows: Tensors, room: Tensors) -> bool:
    """Say whether new tokens are of the kind that a room was made for."""
    return len(rows) == len(room) and all(
        (new.shape[:2], new.shape[3:], new.dtype, new.device)
        == (old.shape[:2], old.shape[3:], old.dtype, old.device)
        for new, old in zip(rows, room, strict=True)
    )

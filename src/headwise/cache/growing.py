"""Storage for one layer that doubles its room when it is full."""

from typing_extensions import override

from headwise.cache.in_room import FromStart
from headwise.cache.room import Room, copy_tokens, joined_tokens, room_like
from headwise.cache.row_counts import RowCounts
from headwise.cache.row_formats import Tensors
from headwise.cache.storage import refuse_gradients

_FIRST_ROOM = 64  # tokens


class GrowingStorage(FromStart):
    """Keys and values in room that doubles, so that a token costs no copy of the others.

    Tokens that carry a gradient are joined to new tensors instead, so that it flows back through
    every step; that costs a copy per call.
    """

    @override
    def _room_for(self, rows: Tensors, tokens: int) -> Room:
        if self._room is None:
            return room_like(rows, max(tokens, _FIRST_ROOM))
        held = self._room.tokens
        is_kept = self._room.is_shared(self) or any(t.requires_grad for t in self._room.tensors)
        if tokens <= held and not is_kept:
            return self._room
        grown = room_like(rows, held if tokens <= held else max(tokens, 2 * held, _FIRST_ROOM))
        stored = tuple(tensor.detach() for tensor in self._filled())
        copy_tokens(grown.tensors, stored, self.length)
        return grown

    @override
    def _joined(self, fresh: Tensors, counts: RowCounts, tokens: int) -> Tensors:
        if not self.form.carries_gradients:
            raise refuse_gradients("rows of 8 bits", "dtype=torch.int8")
        if self._room is None:
            return joined_tokens(tuple(row[:, :, :0] for row in fresh), 0, fresh, counts, tokens)
        return joined_tokens(self._room.tensors, self.lengths, fresh, counts, tokens)

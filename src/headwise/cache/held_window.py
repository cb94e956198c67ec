"""What a call sees of a layer that keeps a window: the tokens kept for good, and the last ones."""

from typing import NamedTuple

import torch
from typing_extensions import override

from headwise.cache.masks import window_of
from headwise.cache.room import copy_tokens, room_like
from headwise.cache.row_counts import RowCounts, each, longest
from headwise.cache.row_formats import Tensors, as_stored
from headwise.cache.storage import Given, Held, Part
from headwise.errors import CacheError
from headwise.ops import StoredKeys
from headwise.patterns import Pattern


class Layout(NamedTuple):
    """Tokens of each row: ``keep_first`` in front, then those from ``starts`` on.

    As long as a row has dropped nothing its start is ``keep_first``, and a token's place in the
    tensors is its number.
    """

    tensors: Tensors
    starts: RowCounts
    lengths: RowCounts
    keep_first: int

    @property
    def end(self) -> int:
        """How much of the room is filled in the longest row."""
        return longest(self.places(self.lengths))

    def places(self, tokens: RowCounts) -> RowCounts:
        """Return where tokens at or behind the start of each row are in the tensors."""
        return each(lambda token, start: self.keep_first + token - start, tokens, self.starts)

    def cut(self, start: int, end: int) -> Tensors:
        """Return a part of the room, as views."""
        return tuple(tensor[:, :, start:end] for tensor in self.tensors)

    def moved(self, starts: RowCounts, room: int) -> Tensors:
        """Return the first tokens, and those from later ``starts`` on, in tensors of their own."""
        found = room_like(self.tensors, room).tensors
        copy_tokens(found, self.tensors, each(min, self.lengths, self.keep_first))
        rest = each(lambda length, start: max(length - start, 0), self.lengths, starts)
        copy_tokens(found, self.tensors, rest, to=self.keep_first, start=self.places(starts))
        return found


class HeldWindow(Held):
    """The tokens that queries of one call may see.

    Args:
        given: As in ``Held``.
        layout: Where the tokens are.
        window: How many keys a query sees, its own counted.
        sure: The first token, behind those kept, that each row has for certain.
        shown: The first one that a user is shown.
    """

    def __init__(
        self, given: Given, layout: Layout, window: int, sure: RowCounts, shown: RowCounts
    ) -> None:
        super().__init__(given, layout.lengths)
        self._layout = layout
        self._window = window
        self._sure = sure
        self._shown = each(max, shown, layout.keep_first)

    @override
    def parts(self, first_query: RowCounts, kv_offset: RowCounts) -> list[Part]:
        """Return the tokens that the window lets queries see, and those kept for good.

        Which tokens these are, and in which parts, follows from positions alone where rows are
        alike: not from when the storage last moved them.
        """
        first = each(lambda query: max(query - self._window + 1, 0), first_query)
        self._check_left(first, first_query)
        _, starts, lengths, keep_first = self._layout
        if isinstance(first, int) and isinstance(starts, int) and isinstance(lengths, int):
            first = min(first, lengths)
            if first <= keep_first and starts == keep_first:
                first = 0 if keep_first else first
        else:
            first = 0 if starts == keep_first else starts
        if first == 0 and starts == keep_first:
            rule = window_of(self._window, keep_first, self._layout.end, kv_offset)
            return [self._part(0, self._layout.end, 0, rule)]
        place = self._layout.places(first)
        near = window_of(self._window, 0, 0, 0)
        start = place if isinstance(place, int) else keep_first
        tail = self._part(start, self._layout.end, first, near)
        return [Part(as_stored(self._layout.cut(0, keep_first))), tail] if keep_first else [tail]

    def _part(self, start: int, end: int, first: RowCounts, rule: Pattern) -> Part:
        return Part(as_stored(self._layout.cut(start, end)), first, rule)

    def _check_left(self, first: RowCounts, first_query: RowCounts) -> None:
        keep_first = self._layout.keep_first
        missing = each(lambda seen, sure: int(max(seen, keep_first) < sure), first, self._sure)
        if longest(missing):
            raise CacheError(
                "KVCache.attend: queries must see no token that the window has dropped, and from "
                f"token {first_query} they see back to token {first}, but only tokens from "
                f"{self._sure} on are left\n"
                "  hint: give the cache a larger window or rollback"
            )

    @override
    def _tokens(self) -> StoredKeys:
        shown, lengths, keep_first = self._shown, self.lengths, self._layout.keep_first
        start = self._layout.places(shown)
        if isinstance(start, int) and isinstance(lengths, int) and isinstance(shown, int):
            if start == keep_first or not keep_first:
                first = 0 if start == keep_first else start
                return as_stored(self._layout.cut(first, self._layout.end))
            pair = self._layout.cut(0, keep_first), self._layout.cut(start, self._layout.end)
            return as_stored(tuple(torch.cat(parts, 2) for parts in zip(*pair, strict=True)))
        room = longest(each(min, lengths, keep_first)) + longest(
            each(lambda length, start: max(length - start, 0), lengths, shown)
        )
        return as_stored(self._layout.moved(shown, room))

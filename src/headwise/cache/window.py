"""Storage for one layer that keeps the last tokens, and the first for good, in constant room."""

from operator import add
from typing import NamedTuple

from torch import Tensor
from typing_extensions import override

from headwise.cache.held_window import HeldWindow, Layout
from headwise.cache.in_room import InRoom
from headwise.cache.room import Room, blanked, copy_tokens, room_like
from headwise.cache.row_counts import RowCounts, each, longest, picked
from headwise.cache.row_formats import RowFormat, Tensors
from headwise.cache.storage import Given, Held, State, is_tracked, refuse_gradients
from headwise.errors import CacheError


class Sizes(NamedTuple):
    """A window in tokens, the query's own counted; first tokens never dropped; slack to go back."""

    window: int
    keep_first: int
    rollback: int

    @property
    def room(self) -> int:
        """Tokens that there is room for; the needed ones are moved to the front when it is full."""
        return self.keep_first + 2 * (self.window + self.rollback)

    def needed(self, reached: int) -> int:
        """Return the first token, behind those kept, that a row must still have.

        Args:
            reached: The most tokens that the row has had.
        """
        return max(self.keep_first, reached - self.rollback - self.window)


class WindowStorage(InRoom):
    """The last tokens of a window, ``rollback`` more, and the first ones.

    New tokens are written behind the others. When the room is full, those that are still needed
    are moved to a new one, which costs a copy of one token for each token appended.
    """

    def __init__(self, form: RowFormat, sizes: Sizes) -> None:
        super().__init__(form)
        self._sizes = sizes
        self._starts: RowCounts = sizes.keep_first
        self._reached: RowCounts = 0

    @override
    def append(
        self, key: Tensor, value: Tensor, given: Given, counts: RowCounts, *, tracked: bool
    ) -> Held:
        if is_tracked(tracked, key, value):
            raise refuse_gradients("a window", "window")
        window, keep_first, _ = self._sizes
        fresh = self.form.encode(key, value)
        ends = each(add, self.lengths, counts)
        sure = each(self._sizes.needed, self._reached)
        layout = self._layout_for(fresh, ends, sure)
        copy_tokens(layout.tensors, fresh, counts, to=layout.places(self.lengths))
        layout = layout._replace(lengths=ends)
        shown = each(lambda length: max(length - window + 1, keep_first), self.lengths)
        held = HeldWindow(given, layout, window, sure, shown)

        reached = each(max, self._reached, ends)
        if layout.tensors[0].shape[2] > self._sizes.room:
            starts = each(self._sizes.needed, reached)
            layout = layout._replace(tensors=layout.moved(starts, self._sizes.room), starts=starts)
        if self._room is None or self._room.tensors is not layout.tensors:
            self._room = Room(layout.tensors)
        self.lengths, self.given, self._starts, self._reached = ends, given, layout.starts, reached
        return held

    def _layout_for(self, fresh: Tensors, ends: RowCounts, sure: RowCounts) -> Layout:
        """Return room for all new tokens, larger than that of the storage where they are many."""
        keep_first, room = self._sizes.keep_first, self._sizes.room
        layout = self._layout if self._room is not None else self._nothing(fresh)
        is_free = self._room is not None and not self._room.is_shared(self)
        if is_free and longest(layout.places(ends)) <= room:
            return layout
        behind = longest(each(lambda end, start: keep_first + end - start, ends, sure))
        return layout._replace(tensors=layout.moved(sure, max(room, behind)), starts=sure)

    def _nothing(self, fresh: Tensors) -> Layout:
        keep_first = self._sizes.keep_first
        return Layout(tuple(row[:, :, :0] for row in fresh), keep_first, 0, keep_first)

    @property
    def _layout(self) -> Layout:
        assert self._room is not None
        return Layout(self._room.tensors, self._starts, self.lengths, self._sizes.keep_first)

    @override
    def held(self) -> Held:
        assert self.given is not None
        window, keep_first, _ = self._sizes
        sure = each(self._sizes.needed, self._reached)
        shown = each(lambda length: max(length - window, keep_first), self.lengths)
        return HeldWindow(self.given, self._layout, window, sure, shown)

    @property
    @override
    def state(self) -> State:
        return *super().state, self._starts, self._reached

    @override
    def restore(self, state: State) -> None:
        *rest, self._starts, self._reached = state
        super().restore(tuple(rest))

    @override
    def forget(self) -> None:
        self.restore((0, None, None, self._sizes.keep_first, 0))

    @override
    def check_crop(self, length: int) -> None:
        rollback = self._sizes.rollback
        lost = each(
            lambda held, reached: int(length < held and not self._goes_back(length, reached)),
            *(self.lengths, self._reached),
        )
        if longest(lost):
            raise CacheError(
                f"KVCache.crop: a window gives back its last {rollback} tokens, and cannot go from "
                f"{self._reached} tokens back to {length}\n"
                "  hint: build the cache with a larger rollback, or reset() it and start again"
            )

    @override
    def crop(self, length: int) -> None:
        keep_first = self._sizes.keep_first
        cut = each(lambda held: int(length < held), self.lengths)
        whole = each(
            lambda is_cut, reached: int(is_cut and self._has_all(length, reached)),
            *(cut, self._reached),
        )
        self._starts = each(lambda w, start: keep_first if w else start, whole, self._starts)
        self._reached = each(lambda w, reached: length if w else reached, whole, self._reached)
        super().crop(length)

    def _goes_back(self, length: int, reached: int) -> bool:
        return self._has_all(length, reached) or length >= reached - self._sizes.rollback

    def _has_all(self, length: int, reached: int) -> bool:
        """Say whether the first ``length`` tokens of a row are there for certain."""
        keep_first = self._sizes.keep_first
        return length <= keep_first or self._sizes.needed(reached) == keep_first

    @override
    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        self._starts = picked(self._starts, index)
        self._reached = picked(self._reached, index)

    @override
    def dump(self) -> tuple[Tensors, dict[str, RowCounts]]:
        counts = {"lengths": self.lengths, "starts": self._starts, "reached": self._reached}
        layout = self._layout
        return blanked(layout.cut(0, layout.end), layout.places(layout.lengths)), counts

    @override
    def fill(self, given: Given, tensors: Tensors, counts: dict[str, RowCounts]) -> None:
        room = room_like(tensors, self._sizes.room)
        copy_tokens(room.tensors, tensors, tensors[0].shape[2])
        self.restore((counts["lengths"], given, room, counts["starts"], counts["reached"]))

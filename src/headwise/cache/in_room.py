"""Keys and values that lie in one room, a row's first token in front."""

from abc import abstractmethod
from operator import add

from torch import Tensor
from typing_extensions import override

from headwise.cache.room import Room, blanked, copy_tokens
from headwise.cache.row_counts import RowCounts, each, longest, picked
from headwise.cache.row_formats import RowFormat, Tensors, as_stored
from headwise.cache.storage import Given, Held, HeldWhole, State, Storage, is_tracked


class InRoom(Storage):
    """Tokens of one layer in tensors (batch, kv_heads, room, …)."""

    def __init__(self, form: RowFormat) -> None:
        super().__init__(form)
        self._room: Room | None = None

    @property
    @override
    def nbytes(self) -> int:
        return 0 if self._room is None else self._room.nbytes

    @property
    @override
    def state(self) -> State:
        return self.lengths, self.given, self._room

    @override
    def restore(self, state: State) -> None:
        self.lengths, self.given, self._room = state

    @override
    def forget(self) -> None:
        self.restore((0, None, None))

    @override
    def crop(self, length: int) -> None:
        self.lengths = each(lambda held: min(held, length), self.lengths)

    @override
    def reorder(self, index: Tensor) -> None:
        if self._room is None or self.given is None:
            return
        if not self._room.stays_with(index, self.length):
            self._room = self._room.picked(index)
        self.lengths = picked(self.lengths, index)
        self.given = self.given._replace(batch=len(index))

    @override
    def fork(self) -> "InRoom":
        twin = super().fork()
        if self._room is not None:
            self._room.share(self, twin)
        return twin


class FromStart(InRoom):
    """All tokens of every row, the first one in front."""

    @abstractmethod
    def _room_for(self, rows: Tensors, tokens: int) -> Room:
        """Return room for ``tokens`` that holds what is stored and may be written to, or refuse."""

    @abstractmethod
    def _joined(self, fresh: Tensors, counts: RowCounts, tokens: int) -> Tensors:
        """Return what is stored and the new tokens as tensors that carry gradients, or refuse."""

    @override
    def append(
        self, key: Tensor, value: Tensor, given: Given, counts: RowCounts, *, tracked: bool
    ) -> Held:
        ends = each(add, self.lengths, counts)
        held = () if self._room is None else self._room.tensors
        fresh = self.form.encode(key, value)
        if is_tracked(tracked, key, value, *held):
            self._room = Room(self._joined(fresh, counts, longest(ends)))
        else:
            self._room = self._room_for(fresh, longest(ends))
            copy_tokens(self._room.tensors, fresh, counts, to=self.lengths)
        self.lengths, self.given = ends, given
        return self.held()

    @override
    def held(self) -> Held:
        assert self.given is not None
        return HeldWhole(self.given, self.lengths, as_stored(self._filled()))

    @override
    def dump(self) -> tuple[Tensors, dict[str, RowCounts]]:
        return blanked(self._filled(), self.lengths), {"lengths": self.lengths}

    @override
    def fill(self, given: Given, tensors: Tensors, counts: dict[str, RowCounts]) -> None:
        lengths = counts["lengths"]
        self._room = self._room_for(tensors, longest(lengths))
        copy_tokens(self._room.tensors, tensors, longest(lengths))
        self.lengths, self.given = lengths, given

    def _filled(self) -> Tensors:
        """Return views of the room up to the end of the longest row."""
        assert self._room is not None
        end = self.length
        return tuple([tensor[:, :, :end] for tensor in self._room.tensors])

"""Layers of a cache as they were, brought back where a block of code fails."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from typing_extensions import override

from headwise.cache.slots import Slots
from headwise.cache.states import LayerState, States
from headwise.cache.storage import Storage


class UndoneOnFailure:
    """Takes back the tokens and the state that a block gives a layer when the block fails.

    A class, for ``torch.compile`` cannot break a graph inside generators that hold such a block.
    """

    def __init__(
        self, layers: dict[int, Storage], states: dict[int, LayerState], layer: int
    ) -> None:
        self._layers = layers
        self._states = states
        self._layer = layer

    def __enter__(self) -> int:
        self._before = self._layers.get(self._layer)
        self._kept = None if self._before is None else self._before.state
        self._state = self._states.get(self._layer)
        return self._layer

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            return
        if self._before is None or self._kept is None:
            made = self._layers.pop(self._layer, None)
            if made is not None:
                made.forget()
        else:
            self._before.restore(self._kept)
        if self._state is None:
            self._states.pop(self._layer, None)
        else:
            self._states[self._layer] = self._state


class Claimed(UndoneOnFailure):
    """Gives a module a layer as well, and takes that back, too."""

    def __init__(
        self,
        layers: dict[int, Storage],
        states: dict[int, LayerState],
        layer: int,
        *,
        slots: Slots,
        owner: object,
    ) -> None:
        super().__init__(layers, states, layer)
        self._slots = slots
        self._owner = owner

    @override
    def __enter__(self) -> int:
        self._give_back = self._slots.kept(self._layer)
        self._slots.claim(self._owner, self._layer, {*self._layers, *self._states})
        return super().__enter__()

    @override
    def __exit__(self, kind: object, error: object, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if kind is not None:
            self._give_back()


@contextmanager
def all_or_none(
    storages: Collection[Storage], states: States, *, rewritten: bool = False
) -> Iterator[None]:
    """Change several layers in a block, and bring all of them back where it fails in one.

    Args:
        storages: The layers that the block changes.
        states: The states that it replaces.
        rewritten: Whether it writes over tokens, and not only forgets some or takes other room.
    """
    found = states.layers
    kept = [each.kept_whole() if rewritten else each.kept() for each in storages]
    try:
        yield
    except BaseException:
        states.layers = found
        for bring_back in kept:
            bring_back()
        raise
    finally:
        kept.clear()

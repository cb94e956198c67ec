"""Which module owns which layer of a cache."""

from collections.abc import Callable, Iterable
from typing import Any
from weakref import ReferenceType, ref

from headwise.errors import CacheError


class Slots:
    """Gives every module a layer of its own and refuses a second one on it."""

    def __init__(self, unowned: Iterable[int] = ()) -> None:
        """Start with layers that hold something and wait for a module, in order."""
        self._owners: dict[int, ReferenceType[object]] = {}
        self._unowned = set(unowned)
        self._memo: dict[int, Any] | None = None

    def claim(self, owner: object, layer: int | None, used: set[int]) -> int:
        """Return the layer of ``owner``: the one asked for, its old one, or the first free one.

        Args:
            owner: The module that stores there.
            layer: The layer asked for, or ``None``.
            used: Layers that hold something. Another one may be taken over by name.
        """
        layer = self.find(owner, layer, used)
        self._owners[layer] = ref(owner)
        self._unowned.discard(layer)
        return layer

    def find(self, owner: object, layer: int | None, used: set[int]) -> int:
        """Return the layer that ``claim`` would give, or refuse as it would."""
        self.settle()
        mine = next((n for n, known in self._owners.items() if known() is owner), None)
        if layer is None:
            layer = mine if mine is not None else self._first_free(used)
        holder = self._owners.get(layer)
        if layer in used - self._unowned and (holder is None or holder() is not owner):
            raise CacheError(
                f"KVCache: layer {layer} belongs to another module\n"
                "  hint: give each module a layer number of its own, or leave layer out"
            )
        return layer

    def kept(self, layer: int) -> Callable[[], None]:
        """Return what gives a layer back to whom it belongs now."""
        holder, was_unowned = self._owners.get(layer), layer in self._unowned

        def give_back() -> None:
            if holder is None:
                self._owners.pop(layer, None)
            else:
                self._owners[layer] = holder
            if was_unowned:
                self._unowned.add(layer)

        return give_back

    def is_owned(self, layer: int) -> bool:
        """Say whether a module that still lives stores there."""
        self.settle()
        holder = self._owners.get(layer)
        return holder is not None and holder() is not None

    def copied(self) -> "Slots":
        """Return slots of the same owners, for a cache of the same modules."""
        self.settle()
        twin = Slots(self._unowned)
        twin._owners = dict(self._owners)
        return twin

    def settle(self) -> None:
        """Give the layers of a deep copy to the copies of their owners, where there are any.

        A cache may be copied before its modules are; so this waits until the copy is first used.
        """
        if self._memo is None:
            return
        memo, self._memo = self._memo, None
        owners = {layer: known() for layer, known in self._owners.items()}
        self._owners = {
            layer: ref(memo.get(id(owner), owner))
            for layer, owner in owners.items()
            if owner is not None
        }

    def _first_free(self, used: set[int]) -> int:
        if self._unowned:
            return min(self._unowned)
        taken = used | {n for n, known in self._owners.items() if known() is not None}
        return next(n for n in range(len(taken) + 1) if n not in taken)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Slots":
        """Give the layers to the copies of their owners where those are copied along."""
        copied = self.copied()
        owners = [known() for known in self._owners.values()]
        copied._memo = memo
        if all(owner is None or id(owner) in memo for owner in owners):
            copied.settle()
        return copied

"""Which module owns which layer of a cache."""

from typing import Any, NoReturn
from weakref import ReferenceType, ref

from headwise.errors import CacheError


class Slots:
    """Gives every module a layer of its own and refuses a second one on it."""

    def __init__(self) -> None:
        self._owners: dict[int, ReferenceType[object]] = {}

    def claim(self, owner: object, layer: int | None, used: set[int]) -> int:
        """Return the layer of ``owner``: the one asked for, its old one, or the first free one.

        Args:
            owner: The module that stores there.
            layer: The layer asked for, or ``None``.
            used: Layers that hold something. Another one may be taken over by name.
        """
        mine = next((n for n, known in self._owners.items() if known() is owner), None)
        if layer is None:
            layer = mine if mine is not None else self._first_free(used)
        holder = self._owners.get(layer)
        if layer in used and (holder is None or holder() is not owner):
            raise CacheError(
                f"KVCache: layer {layer} belongs to another module\n"
                "  hint: give each module a layer number of its own, or leave layer out"
            )
        self._owners[layer] = ref(owner)
        return layer

    def _first_free(self, used: set[int]) -> int:
        taken = used | {n for n, known in self._owners.items() if known() is not None}
        return next(n for n in range(len(taken) + 1) if n not in taken)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Slots":
        """Give the layers to the copies of their owners where those are copied along."""
        copied = Slots()
        for layer, known in self._owners.items():
            owner = known()
            if owner is not None:
                copied._owners[layer] = ref(memo.get(id(owner), owner))
        return copied

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "KVCache: cannot be pickled, for its layers belong to modules of this process\n"
            "  hint: copy.deepcopy copies it within the process"
        )

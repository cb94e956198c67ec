"""The layers of a cache: what each holds, whose it is, and how a failure leaves it as it was."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NoReturn

import torch
from torch import Tensor

from headwise.cache.kinds import Kind
from headwise.cache.limits import check_layer, check_rows_of_state, refuse_export
from headwise.cache.pool import PagePool
from headwise.cache.row_counts import appended_counts
from headwise.cache.slots import Slots
from headwise.cache.states import States
from headwise.cache.storage import Held, Storage
from headwise.cache.undo import UndoneOnFailure, all_or_none
from headwise.errors import CacheError


class Layers:
    """Keys, values and states of layers by their numbers, and the modules that own them."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._layers: dict[int, Storage] = {}
        self._states = States()
        self._slots = Slots()

    @property
    def capacity(self) -> int | None:
        """Room in tokens; ``None`` where it grows."""
        return self._kind.capacity

    @property
    def window(self) -> int | None:
        """How many keys a query sees; ``None`` = all."""
        return self._kind.window

    @property
    def dtype(self) -> torch.dtype | None:
        """What keys and values are stored in; ``None`` = as they come."""
        return self._kind.dtype

    @property
    def pool(self) -> PagePool | None:
        """The pages that are shared with other caches."""
        return self._kind.pool

    @property
    def nbytes(self) -> int:
        """Memory held by all layers, the room not yet filled included, in bytes.

        Of a pool it counts the pages of this cache. What is shared with a fork counts in both.
        """
        return self._states.nbytes + sum(storage.nbytes for storage in self._layers.values())

    def _held(self, layer: int) -> Held:
        if layer not in self._layers or self._layers[layer].given is None:
            raise CacheError(
                f"KVCache: layer {layer} holds nothing; layers {sorted(self._layers)} do\n"
                "  hint: give key and value in the first call"
            )
        return self._layers[layer].held()

    def _append(
        self,
        key: Tensor,
        value: Tensor,
        layer: int,
        q_lengths: Sequence[int] | Tensor | None,
        *,
        tracked: bool,
    ) -> Held:
        storage = self._layers.get(layer)
        if storage is None:
            storage = self._kind.made()
        given = storage.fitting(key, value)
        state = self._states.layers.get(layer)
        check_rows_of_state(layer, None if state is None else state.nest, given.batch)
        counts = appended_counts(q_lengths, given.batch, key.shape[2], "KVCache")
        held = storage.append(key, value, given, counts, tracked=tracked)
        self._layers[layer] = storage
        return held

    def _undone_on_failure(self, layer: int) -> UndoneOnFailure:
        refuse_export("KVCache")
        self._slots.settle()
        return UndoneOnFailure(self._layers, self._states.layers, layer)

    def _all_or_none(self, *, rewritten: bool = False) -> AbstractContextManager[None]:
        return all_or_none(self._layers.values(), self._states, rewritten=rewritten)

    def _by_number(self, caller: str, layer: int | None) -> int:
        """Return the layer that a call names; without a name it is 0, which must be nobody's."""
        if layer is None:
            if self._slots.is_owned(0):
                raise CacheError(
                    f"{caller}: layer 0 belongs to a module, and layer= was left out\n"
                    "  hint: for tokens of your own give layer= a number that no module has; "
                    "layer=0 goes on where the module stores"
                )
            return 0
        check_layer(caller, layer)
        return layer

    @property
    def _used(self) -> set[int]:
        """Layers that hold something or did."""
        return {*self._layers, *self._states.layers}

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "KVCache: cannot be pickled, for its layers belong to modules of this process\n"
            "  hint: copy.deepcopy copies it within the process, save() writes it to a file"
        )

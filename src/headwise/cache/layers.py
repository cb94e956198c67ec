"""The layers of a cache: what each holds, whose it is, and how a failure leaves it as it was."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from torch import Tensor

from headwise.cache.kinds import Kind
from headwise.cache.limits import check_rows_of_state
from headwise.cache.row_counts import appended_counts
from headwise.cache.slots import Slots
from headwise.cache.states import States
from headwise.cache.storage import Held, Storage
from headwise.cache.undo import undone_on_failure
from headwise.errors import CacheError


class Layers:
    """Keys, values and states of layers by their numbers, and the modules that own them."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._layers: dict[int, Storage] = {}
        self._states = States()
        self._slots = Slots()

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

    def _undone_on_failure(self, layer: int) -> AbstractContextManager[None]:
        self._slots.settle()
        return undone_on_failure(self._layers, self._states.layers, layer)

    @property
    def _used(self) -> set[int]:
        """Layers that hold something or did."""
        return {*self._layers, *self._states.layers}

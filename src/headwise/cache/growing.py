"""Storage for one layer that doubles its room when it is full."""

import torch
from torch import Tensor
from typing_extensions import override

from headwise.cache.storage import Storage, empty_like

_FIRST_ROOM = 64  # tokens


class GrowingStorage(Storage):
    """Keys and values in room that doubles, so that a token costs no copy of the others.

    Tokens that carry a gradient are joined to new tensors instead, so that it flows back through
    every step; that costs a copy per call.
    """

    @override
    def _room(self, key: Tensor, value: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        if self._key is None or self._value is None:
            room = max(tokens, _FIRST_ROOM)
            return empty_like(key, room), empty_like(value, room)
        held = self._key.shape[2]
        if tokens <= held and not self._key.requires_grad and not self._value.requires_grad:
            return self._key, self._value
        room = max(tokens, 2 * held, _FIRST_ROOM)
        grown = empty_like(key, room), empty_like(value, room)
        grown[0][:, :, : self.length] = self.key.detach()
        grown[1][:, :, : self.length] = self.value.detach()
        return grown

    @override
    def _joined(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if self._key is None:
            return key, value
        return torch.cat([self.key, key], 2), torch.cat([self.value, value], 2)

    @override
    def reorder(self, index: Tensor) -> None:
        if self._key is not None and self._value is not None:
            self._key = _chosen(self._key, index)
            self._value = _chosen(self._value, index)


def _chosen(stored: Tensor, index: Tensor) -> Tensor:
    chosen = stored.index_select(0, index.to(stored.device))
    if not torch.is_inference_mode_enabled():
        return chosen
    # A tensor made in inference mode could not be written to outside it.
    return empty_like(chosen, chosen.shape[2]).copy_(chosen)

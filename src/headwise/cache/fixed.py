"""Storage for one layer that is allocated once and never moves."""

from torch import Tensor
from typing_extensions import override

from headwise.cache.storage import Storage, empty_like
from headwise.errors import CacheError


class FixedStorage(Storage):
    """Keys and values in room for ``capacity`` tokens."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    @override
    def _room(self, key: Tensor, value: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        if tokens > self._capacity:
            raise CacheError(
                f"KVCache: capacity is {self._capacity} tokens, {self.length} are stored and "
                f"{tokens - self.length} more were given\n"
                "  hint: build the cache with a larger capacity, or without one so that it grows"
            )
        if self._key is None or self._value is None:
            return empty_like(key, self._capacity), empty_like(value, self._capacity)
        return self._key, self._value

    @override
    def _joined(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        raise CacheError(
            "KVCache: room that never moves cannot carry gradients, and key or value has one\n"
            "  hint: decode under torch.no_grad() or torch.inference_mode(), or leave out capacity"
        )

    @override
    def forget(self) -> None:
        self.crop(0)

    @override
    def reorder(self, index: Tensor) -> None:
        if self._key is None or self._value is None:
            return
        for stored in (self.key, self.value):
            stored.copy_(stored.index_select(0, index.to(stored.device)))

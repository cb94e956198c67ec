"""How many tokens a layer of a cache holds, as a layer counts positions."""

from torch import Tensor

from headwise.cache.kv_cache import KVCache
from headwise.cache.row_counts import as_tensor


def held_tokens(cache: KVCache, layer: int) -> int | Tensor:
    """Return the tokens that a layer has had: an int, or (batch,) int64 where rows differ."""
    storage = cache._layers.get(layer)
    if storage is None or storage.given is None or isinstance(storage.lengths, int):
        return cache.length(layer)
    return as_tensor(storage.lengths, storage.given.batch)

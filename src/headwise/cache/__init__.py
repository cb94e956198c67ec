"""Key/value caches with explicit lengths and absolute positions."""

from headwise.cache.kv_cache import KVCache, Stored

__all__ = ["KVCache", "Stored"]

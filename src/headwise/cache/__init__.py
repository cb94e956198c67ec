"""Key/value caches with explicit lengths and absolute positions."""

from headwise.cache.held_tokens import held_tokens
from headwise.cache.kv_cache import KVCache
from headwise.cache.pool import PagePool
from headwise.cache.storage import Stored

__all__ = ["KVCache", "PagePool", "Stored", "held_tokens"]

"""Attention to a memory that a cache keeps: projected once, attended to at every step."""

from typing import Any

from torch import Tensor
from typing_extensions import override

from headwise._checks import refuse_shapes
from headwise._dims import Hidden, Memory
from headwise._forks import alone_after_fork
from headwise.cache import KVCache
from headwise.errors import CacheError
from headwise.nn.attention import MultiHeadAttention
from headwise.nn.heads import normalised
from headwise.nn.projection import project
from headwise.patterns import Full, KeyMask


class CrossAttention(MultiHeadAttention):
    """A ``MultiHeadAttention`` to a memory, whose keys and values a cache can keep.

    Without a cache it is the layer itself. With one, the first call projects the memory and stores
    it, and later calls read what is stored: they must be given the same memory. A layer with a
    mechanism keeps nothing and reads the memory in every call.
    """

    @override
    @alone_after_fork
    def forward(
        self,
        query: Hidden | None = None,
        key: Memory | None = None,
        *rest: Any,
        kv_mask: Tensor | None = None,
        cache: KVCache | None = None,
        layer: int | None = None,
        **named: Any,
    ) -> Hidden:
        """Attend to the memory ``key``; without ``cache`` as ``MultiHeadAttention.forward``.

        Args:
            query: (batch, q_len, d_model).
            key: The memory, (batch, kv_len, kv_dim).
            rest: What else ``MultiHeadAttention.forward`` takes, not with a cache.
            kv_mask: (batch, kv_len), ``True`` = real token of the memory.
            cache: Where keys and values of the memory are kept.
            layer: Under which number.
            named: As ``rest``.

        Returns:
            (batch, q_len, d_model).

        Raises:
            CacheError: Another memory than the one that is stored, as far as its length tells.
            TypeError: Arguments that do not go with a cache, or none that do.
            ShapeError: Sizes that do not fit together.
        """
        if cache is None or self.mechanism is not None:
            return super().forward(query, key, *rest, kv_mask=kv_mask, **named)
        if query is None or key is None or layer is None or rest or named:
            raise TypeError(
                "CrossAttention.forward: with a cache it takes query, key, kv_mask and layer\n"
                "  hint: leave cache out for calls with a mask or a pattern of their own"
            )
        if query.ndim != 3 or key.ndim != 3 or query.shape[0] != key.shape[0]:
            raise refuse_shapes(
                "CrossAttention",
                "with a cache, queries and memory must be (batch, length, width) of one batch",
                "give one sample a leading dimension with x[None]",
                query=query,
                key=key,
            )
        q = self.split_heads(project(self.W_q, query))
        if self.q_norm is not None:
            q = normalised(self.q_norm, q)
        k, v = self._new_keys(query, key, cache, layer)
        mixed = cache.attend(
            q,
            k,
            v,
            Full() if kv_mask is None else KeyMask(kv_mask),
            layer=layer,
            softcap=self.softcap,
            sinks=self.sinks,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return project(self.W_o, self.combine_heads(mixed))

    def _new_keys(
        self, query: Tensor, memory: Tensor, cache: KVCache, layer: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return keys and values of a memory that is not stored yet."""
        stored, given = cache.length(layer), memory.shape[1]
        if not stored:
            return self.project(query[:, :1], memory)[1:]
        if stored != given:
            raise CacheError(
                f"CrossAttention: the cache keeps a memory of {stored} tokens, and the call "
                f"brings one of {given}\n"
                "  hint: one cache serves one memory; begin with a new cache, or reset() it"
            )
        return None, None

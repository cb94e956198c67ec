"""The key/value cache: stores what was seen, and attends to it in place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from headwise._checks import is_int
from headwise._dims import Key, Output, Query, Sinks, Value
from headwise.cache.fixed import FixedStorage
from headwise.cache.growing import GrowingStorage
from headwise.cache.slots import Slots
from headwise.cache.storage import Storage
from headwise.errors import CacheError
from headwise.ops import attend
from headwise.ops.softmax.settle_bias import Bias
from headwise.patterns import Causal, Pattern

_CAUSAL = Causal()


class Stored(NamedTuple):
    """What a layer of a cache holds, as views of its storage."""

    key: Tensor
    value: Tensor


class KVCache:
    """Keys and values of all layers of a model, so that a step costs what is new.

    Positions are absolute and come from the cache: a query appended after ``n`` tokens stands at
    position ``n``. A call that fails leaves the cache as it was.

    Args:
        capacity: Room in tokens, allocated at the first call; it never moves, and more tokens
            are refused. ``None`` = the room grows, doubling.

    Raises:
        CacheError: A capacity below 1.

    Example:
        >>> import torch, headwise as hw
        >>> cache = hw.KVCache()
        >>> for _ in range(3):
        ...     q, k, v = torch.randn(3, 1, 2, 1, 8).unbind(0)
        ...     step = cache.attend(q, k, v)
        >>> cache.length(), tuple(step.shape)
        (3, (1, 2, 1, 8))
    """

    def __init__(self, *, capacity: int | None = None) -> None:
        if capacity is not None and (not is_int(capacity) or capacity < 1):
            raise CacheError(
                f"KVCache: capacity must be an int of at least 1 token, got {capacity!r}\n"
                "  hint: leave capacity out for a cache that grows"
            )
        self.capacity = capacity
        self._layers: dict[int, Storage] = {}
        self._slots = Slots()

    def attend(
        self,
        query: Query,
        key: Key | None = None,
        value: Value | None = None,
        pattern: Pattern | None = _CAUSAL,
        *,
        layer: int = 0,
        bias: Bias | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Sinks | None = None,
        dropout_p: float = 0.0,
        q_offset: int | Tensor | None = None,
        kv_offset: int | Tensor = 0,
        backend: str = "auto",
    ) -> Output:
        """Append key and value, then attend to everything the layer holds.

        Args:
            query: What is looked for, (batch, q_heads, q_len, head_dim).
            key: New keys, (batch, kv_heads, new, head_dim). ``None`` attends to what is there
                and appends nothing, as cross attention does; the default pattern then is
                everything instead of causal.
            value: New values, (batch, kv_heads, new, value_dim).
            pattern: Which pairs may meet; positions count from the start of the cache. A mask
                spelled out covers all keys, those in the cache included.
            layer: Which layer of the model this is.
            bias: As in ``attend``, over all keys.
            scale: As in ``attend``.
            softcap: As in ``attend``.
            sinks: As in ``attend``.
            dropout_p: As in ``attend``.
            q_offset: Absolute position of the first query; ``None`` = the last query stands
                beside the last key.
            kv_offset: Absolute position of the first key that is stored.
            backend: As in ``attend``.

        Returns:
            (batch, q_heads, q_len, value_dim) in the dtype of ``query``.

        Raises:
            CacheError: Tokens that do not continue what is stored or exceed the capacity;
                otherwise as ``attend``. The cache then is as it was.
        """
        if (key is None) != (value is None):
            raise CacheError(
                "KVCache.attend: key and value must be given together\n"
                "  hint: leave both out to attend to what is stored"
            )
        if key is None and pattern is _CAUSAL:
            pattern = None
        with self._undone_on_failure(layer):
            if key is None or value is None:
                stored = self.stored(layer)
            else:
                stored = self._append(key, value, layer, tracked=query.requires_grad)
            return attend(
                query,
                stored.key,
                stored.value,
                pattern,
                bias=bias,
                scale=scale,
                softcap=softcap,
                sinks=sinks,
                dropout_p=dropout_p,
                q_offset=q_offset,
                kv_offset=kv_offset,
                backend=backend,
            )

    def append(self, key: Key, value: Value, *, layer: int = 0) -> Stored:
        """Store further tokens of a layer; return all it holds, without a copy.

        Raises:
            CacheError: As ``attend``; nothing is stored then.
        """
        return self._append(key, value, layer, tracked=False)

    @contextmanager
    def appended(
        self, key: Key, value: Value, *, layer: int = 0, tracked: bool = False
    ) -> Iterator[Stored]:
        """Store further tokens for a block of code, and take them back where that fails.

        Args:
            key: New keys, (batch, kv_heads, new, head_dim).
            value: New values, (batch, kv_heads, new, value_dim).
            layer: Which layer of the model this is.
            tracked: Whether autograd will keep what is stored for a backward pass.

        Yields:
            All that the layer holds, without a copy.

        Raises:
            CacheError: As ``attend``; nothing is stored then.
        """
        with self._undone_on_failure(layer):
            yield self._append(key, value, layer, tracked=tracked)

    def stored(self, layer: int = 0) -> Stored:
        """Return what a layer holds, without a copy.

        Raises:
            CacheError: The layer holds nothing yet.
        """
        if layer not in self._layers or not self._layers[layer].is_made:
            raise CacheError(
                f"KVCache: layer {layer} holds nothing; layers {sorted(self._layers)} do\n"
                "  hint: give key and value in the first call"
            )
        return Stored(self._layers[layer].key, self._layers[layer].value)

    def slot(self, module: object, layer: int | None = None) -> int:
        """Return the layer that ``module`` stores in, giving it one where it has none.

        Raises:
            CacheError: The layer asked for belongs to another module.
        """
        return self._slots.claim(module, layer, set(self._layers))

    def length(self, layer: int = 0) -> int:
        """Return how many tokens a layer holds; 0 for one that was never used."""
        return self._layers[layer].length if layer in self._layers else 0

    def crop(self, length: int) -> None:
        """Keep the first ``length`` tokens of every layer, 0 = none; a longer one keeps all.

        Raises:
            CacheError: A negative length.
        """
        if not is_int(length) or length < 0:
            raise CacheError(
                f"KVCache.crop: length must be an int of at least 0, got {length!r}\n"
                "  hint: say how many tokens to keep, as in crop(cache.length() - 1)"
            )
        for storage in self._layers.values():
            storage.crop(length)

    def reorder(self, index: Tensor) -> None:
        """Let sample ``i`` of every layer become what sample ``index[i]`` was.

        Args:
            index: (batch,) integers. A cache that grows may change its batch size so.

        Raises:
            CacheError: Indices that name no sample; another batch size with a fixed capacity.
        """
        batches = {storage.key.shape[0] for storage in self._layers.values() if storage.is_made}
        if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise CacheError(
                f"KVCache.reorder: index must be 1-D integers, got {tuple(index.shape)} "
                f"{index.dtype}\n  hint: give for each sample the number of its source"
            )
        for batch in batches:
            if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < batch:
                raise CacheError(
                    f"KVCache.reorder: index must name samples 0 to {batch - 1}, "
                    f"got {index.tolist()}\n  hint: give for each sample the number of its source"
                )
            if self.capacity is not None and index.numel() != batch:
                raise CacheError(
                    f"KVCache.reorder: with a fixed capacity the batch stays {batch} samples, "
                    f"got {index.numel()} indices\n  hint: leave out capacity to change the batch"
                )
        for storage in self._layers.values():
            storage.reorder(index.long())

    def reset(self) -> None:
        """Forget all tokens; modules keep their layers.

        Growing room is given back, and the next call may bring another batch; fixed room stays
        where it is, for the same batch.
        """
        for storage in self._layers.values():
            storage.forget()

    @property
    def nbytes(self) -> int:
        """Memory held by all layers, the room not yet filled included, in bytes."""
        return sum(storage.nbytes for storage in self._layers.values())

    def __repr__(self) -> str:
        room = "growing" if self.capacity is None else f"capacity={self.capacity}"
        lengths = {layer: storage.length for layer, storage in sorted(self._layers.items())}
        return f"KVCache({room}, lengths={lengths}, {self.nbytes:,} bytes)"

    def _append(self, key: Tensor, value: Tensor, layer: int, *, tracked: bool) -> Stored:
        storage = self._layers.get(layer)
        if storage is None:
            storage = GrowingStorage() if self.capacity is None else FixedStorage(self.capacity)
        storage.append(key, value, tracked=tracked)
        self._layers[layer] = storage
        return Stored(storage.key, storage.value)

    @contextmanager
    def _undone_on_failure(self, layer: int) -> Iterator[None]:
        """Take back what was appended when the attention that follows fails."""
        before = self._layers.get(layer)
        state = None if before is None else before.state
        try:
            yield
        except BaseException:
            if before is None or state is None:
                self._layers.pop(layer, None)
            else:
                before.restore(state)
            raise

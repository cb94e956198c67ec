"""The key/value cache: stores what was seen, and attends to it in place."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from headwise._dims import Key, Output, Query, Sinks, Value
from headwise.cache import files
from headwise.cache.attending import attend_held
from headwise.cache.kinds import Kind, check_kind
from headwise.cache.layers import Layers
from headwise.cache.limits import (
    check_index,
    check_layer,
    check_layers,
    check_length,
    check_tokens,
)
from headwise.cache.pool import PagePool
from headwise.cache.row_counts import appended_counts, as_tensor
from headwise.cache.slots import Slots
from headwise.cache.states import Nest, check_nest
from headwise.cache.storage import Stored
from headwise.cache.undo import Claimed
from headwise.errors import CacheError
from headwise.ops.softmax.settle import Extras
from headwise.ops.softmax.settle_bias import Bias
from headwise.patterns import Causal, Pattern

_CAUSAL = Causal()


class KVCache(Layers):
    """Keys and values of all layers of a model, so that a step costs what is new.

    Positions are absolute and come from the cache: a query appended after ``n`` tokens stands at
    position ``n`` of its row. A call that fails leaves the cache as it was.

    Args:
        capacity: Room in tokens, allocated at the first call; it never moves, and more tokens
            are refused. ``None`` = the room grows, doubling.
        window: How many keys a query sees, its own counted; it is and-ed onto the pattern of every
            call. Room is constant, and what no window reaches any more is dropped.
        keep_first: How many of the first tokens a window never drops; every query sees them. They
            are counted as they are stored, padding in front too: pad on the right, with
            ``q_lengths``.
        rollback: How many of the last tokens a window can give back, see ``crop``.
        dtype: What keys and values are stored in: a floating-point dtype, or ``torch.int8``, which
            rounds each row to 8 bits with a scale of its own. ``None`` = as they come.
        pool: Pages that this cache shares with others, see ``PagePool``.

    Raises:
        CacheError: Sizes that make no sense; two of capacity, window and pool.

    Example:
        >>> import torch, headwise as hw
        >>> cache = hw.KVCache()
        >>> for _ in range(3):
        ...     q, k, v = torch.randn(3, 1, 2, 1, 8).unbind(0)
        ...     step = cache.attend(q, k, v)
        >>> cache.length(), tuple(step.shape)
        (3, (1, 2, 1, 8))
    """

    def __init__(
        self,
        *,
        capacity: int | None = None,
        window: int | None = None,
        keep_first: int = 0,
        rollback: int = 16,
        dtype: torch.dtype | None = None,
        pool: PagePool | None = None,
    ) -> None:
        super().__init__(check_kind(Kind(capacity, window, keep_first, rollback, dtype, pool)))

    def attend(
        self,
        query: Query,
        key: Key | None = None,
        value: Value | None = None,
        pattern: Pattern | None = _CAUSAL,
        *,
        layer: int | None = None,
        q_lengths: Sequence[int] | Tensor | None = None,
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
                spelled out covers all keys, those in the cache included, and those that a window
                has dropped.
            layer: Which layer of the model this is; ``None`` = 0, unless a module stores there.
            q_lengths: How many of the new tokens are real in each row, (batch,); the others, to
                the right, are neither stored nor seen, and their queries give zeros. Rows then
                differ in length. ``None`` = all are real.
            bias: As in ``attend``, over all keys, as a mask.
            scale: As in ``attend``.
            softcap: As in ``attend``.
            sinks: As in ``attend``.
            dropout_p: As in ``attend``.
            q_offset: Absolute position of the first query, or one for each row; ``None`` = the
                last real query of a row stands beside its last key.
            kv_offset: Absolute position of the first key that was ever appended.
            backend: As in ``attend``.

        Returns:
            (batch, q_heads, q_len, value_dim) in the dtype of ``query``.

        Raises:
            CacheError: Tokens that do not continue what is stored or exceed the room; queries that
                would see tokens a window has dropped; otherwise as ``attend``. The cache then is
                as it was.
        """
        layer = self._by_number("KVCache.attend", layer)
        check_tokens(query, key, value, has_lengths=q_lengths is not None)
        if key is None and pattern is _CAUSAL:
            pattern = None
        extras = Extras(bias, scale, softcap, sinks, dropout_p, q_offset, kv_offset)
        with self._undone_on_failure(layer):
            if key is None or value is None:
                held = self._held(layer)
            else:
                held = self._append(key, value, layer, q_lengths, tracked=query.requires_grad)
            counts = None
            if q_lengths is not None:
                rows = held.given.batch, query.shape[2]
                counts = appended_counts(q_lengths, *rows, "KVCache.attend")
            return attend_held(query, held, pattern, extras, backend, counts)

    def append(
        self,
        key: Key,
        value: Value,
        *,
        layer: int | None = None,
        q_lengths: Sequence[int] | Tensor | None = None,
    ) -> Stored:
        """Store further tokens of a layer; return what their queries may see, as ``stored`` does.

        That is all that the layer holds. Of a window it is the tokens kept for good, those that
        the first new token sees, and all new ones.

        Raises:
            CacheError: As ``attend``; nothing is stored then.
        """
        layer = self._by_number("KVCache.append", layer)
        with self._undone_on_failure(layer):
            return self._append(key, value, layer, q_lengths, tracked=False).stored()

    @contextmanager
    def appended(
        self, key: Key, value: Value, *, layer: int | None = None, tracked: bool = False
    ) -> Iterator[Stored]:
        """Store further tokens for a block of code, and take them back where that fails.

        Args:
            key: New keys, (batch, kv_heads, new, head_dim).
            value: New values, (batch, kv_heads, new, value_dim).
            layer: As in ``attend``.
            tracked: Whether autograd will keep what is stored for a backward pass.

        Yields:
            All that the layer holds, as ``stored``.

        Raises:
            CacheError: As ``attend``, or a window, which does not hold all; nothing is stored then.
        """
        layer = self._by_number("KVCache.appended", layer)
        if self.window is not None:
            raise CacheError(
                "KVCache.appended: the block must see all tokens, and a window of "
                f"{self.window} drops some\n  hint: give it a cache without a window"
            )
        with self._undone_on_failure(layer):
            yield self._append(key, value, layer, None, tracked=tracked).stored()

    def stored(self, layer: int = 0) -> Stored:
        """Return what a layer holds, as plain tensors: views where it is stored so.

        What is stored in 8 bits is multiplied out and what is in pages is gathered, once, when it
        is first asked for. A window shows the tokens kept for good and the last of the window.

        Raises:
            CacheError: The layer holds nothing yet.
        """
        check_layer("KVCache.stored", layer)
        return self._held(layer).stored()

    def slot(self, module: object, layer: int | None = None) -> int:
        """Return the layer that ``module`` stores in, giving it one where it has none.

        A module at several depths, its weights shared, must name a ``layer`` for each: in one
        alone the tokens of all depths would stand behind each other.

        Raises:
            CacheError: The layer asked for belongs to another module.
        """
        if layer is not None:
            check_layer("KVCache.slot", layer)
        return self._slots.claim(module, layer, self._used)

    def peek(self, module: object, layer: int | None = None) -> int:
        """Return the layer that ``slot`` would give ``module``, giving it none.

        Raises:
            CacheError: As ``slot``.
        """
        if layer is not None:
            check_layer("KVCache.peek", layer)
        return self._slots.find(module, layer, self._used)

    def claimed(self, module: object, layer: int | None = None) -> Claimed:
        """Give ``module`` its layer for a block of code, as ``slot`` does, and yield its number.

        Where the block fails, by an interrupt too, the layer's tokens, its state and its owner are
        what they were.

        Raises:
            CacheError: As ``slot``.
        """
        number = self.peek(module, layer)
        return Claimed(self._layers, self._states.layers, number, slots=self._slots, owner=module)

    def length(self, layer: int = 0) -> int:
        """Return how many tokens the longest row of a layer has had; 0 for one never used."""
        check_layer("KVCache.length", layer)
        stored = self._layers[layer].length if layer in self._layers else 0
        state = self._states.layers.get(layer)
        return stored if state is None else max(stored, state.length or 0)

    def lengths(self, layer: int = 0) -> Tensor:
        """Return how many tokens each row of a layer has had, (batch,) int64 on the CPU.

        A layer that was never used has no rows.
        """
        check_layer("KVCache.lengths", layer)
        storage = self._layers.get(layer)
        if storage is not None and storage.given is not None:
            return as_tensor(storage.lengths, storage.given.batch)
        state = self._states.layers.get(layer)
        if state is None:
            return torch.zeros(0, dtype=torch.int64, device="cpu")
        return as_tensor(state.length or 0, check_nest(state.nest))

    def state(self, layer: int = 0) -> Nest:
        """Return what a mechanism keeps beside keys and values; ``None`` where there is nothing."""
        check_layer("KVCache.state", layer)
        found = self._states.layers.get(layer)
        return None if found is None else found.nest

    def set_state(self, layer: int, state: Nest, *, length: int | None = None) -> None:
        """Keep the state of a mechanism; it replaces the one before.

        Args:
            layer: Which layer of the model this is.
            state: Tensors with the batch in front, in tuples, lists and dictionaries; ``None``
                forgets the state.
            length: How many tokens it stands for, which ``length()`` then returns.

        Raises:
            CacheError: A state of anything else, or of another batch.
        """
        check_layer("KVCache.set_state", layer)
        given = self._layers[layer].given if layer in self._layers else None
        self._states.put(layer, state, length, None if given is None else given.batch)

    def crop(self, length: int, *, layers: Iterable[int] | None = None) -> None:
        """Keep the first ``length`` tokens of every row, 0 = none.

        A row that is no longer than that keeps all: rows and layers differ in length.

        Args:
            length: How many tokens to keep.
            layers: Which layers are cropped; ``None`` = all, the memory of cross attention among
                them. A cache that holds such a memory needs the layers of the decoder named.

        Raises:
            CacheError: A negative length; layers that hold nothing; further back than a window
                remembers; a layer with a state, which cannot go back. Nothing has changed then.
        """
        check_length(length)
        chosen = self._used if layers is None else check_layers(layers, self._used)
        self._states.check_crop(length, chosen)
        storages = [self._layers[number] for number in chosen if number in self._layers]
        for storage in storages:
            storage.check_crop(length)
        with self._all_or_none():
            for storage in storages:
                storage.crop(length)

    def reorder(self, index: Tensor) -> None:
        """Let row ``i`` of every layer become what row ``index[i]`` was, states included.

        Args:
            index: (batch,) integers. With a fixed capacity the batch size stays as it is. Pages
                are shared, not copied. Until all layers are done what was there is kept, too.

        Raises:
            CacheError: Indices that name no row, or none at all; layers of different batches;
                another batch size with a fixed capacity.
        """
        batches = {each.given.batch for each in self._layers.values() if each.given is not None}
        check_index(index, batches | self._states.rows())
        for storage in self._layers.values():
            storage.check_rows(index.numel())
        with self._all_or_none(rewritten=True):
            for storage in self._layers.values():
                storage.reorder(index.long())
            self._states.reorder(index.long())

    def fork(self) -> "KVCache":
        """Return a cache with the same tokens that goes on by itself.

        Memory is shared until one of the two writes to it, which then copies it: page by page with
        a pool, layer by layer without. Room of fixed capacity, and states, are copied at once.
        Modules have the same layers in both.
        """
        twin = type(self)(**self._kind._asdict())
        twin._layers = {number: storage.fork() for number, storage in self._layers.items()}
        twin._states = self._states.fork()
        twin._slots = self._slots.copied()
        return twin

    def reset(self) -> None:
        """Forget all tokens and states; modules keep their layers.

        Growing room and pages are given back, and the next call may bring another batch; fixed
        room stays where it is for the same batch, and another one gets new room.
        """
        with self._all_or_none():
            self._states.layers = {}
            for storage in self._layers.values():
                storage.forget()

    def save(self, path: str | PathLike[str]) -> None:
        """Write all tokens and states to a file in the safetensors format.

        It is written beside ``path`` and then renamed, so that there is never half a file.
        """
        files.save(path, self._kind, self._layers, self._states.layers)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        pool: PagePool | None = None,
        device: torch.device | str = "cpu",
    ) -> "KVCache":
        """Read a cache that ``save`` wrote.

        Modules take its layers over in the order in which they first ask for one.

        Args:
            path: The file.
            pool: Where the pages of a paged cache are taken from; ``None`` = a new pool that grows.
            device: Where keys and values are to lie.

        Raises:
            CacheError: A file that is cut off, of something else, or of another version.
        """
        found = files.load(path, pool, device)
        cache = cls(**found.kind._asdict())
        cache._layers, cache._states.layers = found.layers, found.states
        cache._slots = Slots(set(found.layers) | set(found.states))
        return cache

    def __deepcopy__(self, memo: dict[int, Any]) -> "KVCache":
        """Fork; the layers go to the copies of their modules where those are copied along."""
        twin = self.fork()
        twin._slots = deepcopy(self._slots, memo)
        return twin

    def __copy__(self) -> "KVCache":
        """Fork, for two names of the same layers would be no copy."""
        return self.fork()

    def __repr__(self) -> str:
        lengths = {layer: self.length(layer) for layer in sorted(self._used)}
        return f"KVCache({self._kind}, lengths={lengths}, {self.nbytes:,} bytes)"

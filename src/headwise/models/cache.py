"""The cache of a model: a ``KVCache`` as ``generate`` of transformers drives it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import Cache as _Cache
from typing_extensions import override

from headwise.cache import KVCache
from headwise.errors import CacheError


class Cache(_Cache):
    """Keys, values and states of a model of ``headwise.models``, kept in a ``KVCache``.

    ``generate`` makes one itself; give it one to choose how tokens are kept: in 8 bits, in a
    window, in fixed room, in pages. A pass that fails leaves it as it was.

    Args:
        store: Where self-attention keeps its tokens; ``None`` = ``headwise.KVCache()``.

    Attributes:
        store: That.
        memory: Where cross attention keeps those of the source, once.
        shift: How far tokens stand from where they are counted to, for each sample; 0 unless
            ``position_ids`` moved them.

    Raises:
        TypeError: A store that is no ``KVCache``.

    Example:
        >>> import torch, headwise as hw
        >>> cache = hw.models.Cache(hw.KVCache(dtype=torch.int8))
        >>> cache.get_seq_length()
        0
    """

    def __init__(self, store: KVCache | None = None) -> None:
        super().__init__(layers=[])
        if not isinstance(store, KVCache | None):
            raise TypeError(
                f"Cache: store must be a headwise.KVCache, got {type(store).__name__}\n"
                "  hint: headwise.models.Cache(headwise.KVCache(dtype=torch.int8))"
            )
        self.store = KVCache() if store is None else store
        self.memory = KVCache()
        self.shift: int | Tensor = 0

    @contextmanager
    def one_pass(self, layers: int) -> Iterator[int]:
        """Let every layer append once in a block; where it fails, all are what they were.

        Yields:
            How many tokens there were before; where there were none, a memory is read anew.
        """
        held = self.store.length()
        if not held:
            self.memory.reset()
        with ExitStack() as stack:
            for layer in range(layers):
                stack.enter_context(self.store._undone_on_failure(layer))
                stack.enter_context(self.memory._undone_on_failure(layer))
            yield held

    @property
    def nbytes(self) -> int:
        """Memory held by all layers, in bytes."""
        return self.store.nbytes + self.memory.nbytes

    @override
    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.store.length(layer_idx)

    @override
    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1 if self.store.capacity is None else self.store.capacity

    @override
    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.store.length(layer_idx) + query_length, 0

    @override
    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens: minus their number, as transformers counts.

        Raises:
            CacheError: A positive number; layers that cannot go back.
        """
        if tokens_to_remove > 0:
            raise CacheError(
                "Cache.crop: the number of tokens to remove is given as a negative int, got "
                f"{tokens_to_remove}\n  hint: crop(-2) takes back two tokens"
            )
        if tokens_to_remove < 0:
            self.store.crop(max(self.store.length() + tokens_to_remove, 0))

    @override
    def reorder_cache(self, beam_idx: Tensor) -> None:
        for store in self._filled():
            store.reorder(beam_idx)
        if isinstance(self.shift, Tensor):
            self.shift = self.shift[beam_idx.to(self.shift.device)]

    @override
    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(max(self.batch_size, 0)).repeat_interleave(repeats))

    @override
    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    @override
    def reset(self) -> None:
        self.store.reset()
        self.memory.reset()
        self.shift = 0

    @override
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> NoReturn:
        raise CacheError(
            "Cache.update: this cache serves models of headwise.models, whose layers append by "
            "themselves\n  hint: for other models of transformers there is headwise.hf.Cache"
        )

    @property
    @override
    def batch_size(self) -> int:
        return self.store.lengths().numel() or -1

    @property
    @override
    def is_compileable(self) -> bool:
        return False

    @property
    @override
    def is_linear(self) -> list[bool]:
        """What tells ``generate`` to pass new tokens alone: that the cache has a length."""
        return [False]

    @property
    @override
    def is_initialized(self) -> bool:
        return self.store.length() > 0

    @property
    @override
    def is_croppable(self) -> bool:
        """Whether tokens can be taken back; a state cannot go back."""
        return not self.store._states.layers

    def fork(self) -> "Cache":
        """Return a cache with the same tokens that goes on by itself, see ``KVCache.fork``."""
        twin = type(self)(self.store.fork())
        twin.memory, twin.shift = self.memory.fork(), self.shift
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> "Cache":
        return self.fork()

    @override
    def __repr__(self) -> str:
        return f"Cache({self.store!r})"

    def _filled(self) -> list[KVCache]:
        return [store for store in (self.store, self.memory) if store.lengths().numel()]

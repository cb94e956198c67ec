"""A transformers cache for ``generate`` that stores in ``headwise.KVCache``."""

from typing import NoReturn

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import DynamicCache, DynamicLayer, get_layer_types_and_kwargs
from typing_extensions import override

from headwise.cache import KVCache
from headwise.errors import CacheError

_KEEPS_ALL = frozenset(("full_attention", "sliding_attention", "chunked_attention", "dummy"))


class Cache(DynamicCache):
    """Keys and values of a transformers model in room that doubles: no token copies the others.

    Give it to a model or to ``generate`` as ``cache=``; for an encoder-decoder model, two of them
    in ``EncoderDecoderCache``. Every layer keeps all tokens, those with a sliding window too: the
    mask lets them see what the window allows. A forward pass that fails half-way leaves nothing
    behind; in the very first pass that takes a ``config``, which tells how many layers there are.

    Args:
        config: Configuration of the model; ``None`` = layers are counted as they come.
        capacity: Room in tokens, allocated once and never moved; ``None`` = the room grows.

    Raises:
        CacheError: A model with layers that do not store keys and values of every token.

    Example:
        >>> import headwise as hw
        >>> cache = hw.hf.Cache()
        >>> cache.get_seq_length(), cache.nbytes
        (0, 0)
    """

    def __init__(
        self, config: PreTrainedConfig | None = None, *, capacity: int | None = None
    ) -> None:
        super().__init__()
        self.store = KVCache(capacity=capacity)
        self._last = None if config is None else _last_layer(config)

    @override
    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        self._forget_unfinished(layer_idx)
        stored = self.store.append(key_states, value_states, layer=layer_idx)
        while len(self.layers) <= layer_idx:
            self.layers.append(_Layer(self, len(self.layers)))
        return stored.key, stored.value

    @override
    def get_seq_length(self, layer_idx: int = 0) -> int:
        return min(self.store.length(layer_idx), self._finished)

    @override
    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length(layer_idx) + query_length, 0

    @override
    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens of every layer.

        Args:
            tokens_to_remove: Minus the number of tokens, as transformers counts; 0 removes none,
                and more than there are removes all.

        Raises:
            CacheError: A positive number.
        """
        if tokens_to_remove > 0:
            raise CacheError(
                f"Cache.crop: the number of tokens to remove is given as a negative int, got "
                f"{tokens_to_remove}\n"
                "  hint: crop(-2) takes back two tokens; to keep the first n, "
                "crop(n - cache.get_seq_length())"
            )
        self.store.crop(max(self._finished + tokens_to_remove, 0))

    @override
    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.store.reorder(beam_idx)

    @override
    def batch_repeat_interleave(self, repeats: int) -> None:
        self.store.reorder(torch.arange(self._samples).repeat_interleave(repeats))

    @override
    def batch_select_indices(self, indices: Tensor) -> None:
        self.store.reorder(torch.arange(self._samples)[indices.to("cpu")])

    @override
    def reset(self) -> None:
        self.store.reset()

    @property
    def nbytes(self) -> int:
        """Memory held by all layers, the room not yet filled included, in bytes."""
        return self.store.nbytes

    def __repr__(self) -> str:
        return f"Cache({self.store!r})"

    @property
    def _finished(self) -> int:
        """Tokens of the last pass that reached the last layer."""
        last = len(self.layers) - 1 if self._last is None else self._last
        return self.store.length(last)

    @property
    def _samples(self) -> int:
        return self.store.stored(len(self.layers) - 1).key.shape[0] if self.layers else 0

    def _forget_unfinished(self, layer: int) -> None:
        """Take back what a pass that failed before the last layer had stored."""
        if self.store.length(layer) <= self._finished:
            return
        if self._finished:
            self.store.crop(self._finished)
        else:
            self.store.reset()


class _Layer(DynamicLayer):  # type: ignore[no-untyped-call]
    """The view of one layer that modelling code takes out of ``cache.layers``."""

    def __init__(self, cache: Cache, number: int) -> None:
        self._cache = cache
        self._number = number

    @property
    def is_initialized(self) -> bool:  # type: ignore[override]
        """Whether the layer holds tokens."""
        return self._cache.store.length(self._number) > 0

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """The stored keys, a view; ``None`` before the first ones."""
        return self._cache.store.stored(self._number).key if self.is_initialized else None

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """The stored values, a view; ``None`` before the first ones."""
        return self._cache.store.stored(self._number).value if self.is_initialized else None

    @override
    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        return self._cache.update(key_states, value_states, self._number)

    @override
    def get_seq_length(self) -> int:
        return self._cache.get_seq_length(self._number)

    @override
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.get_mask_sizes(query_length, self._number)

    @override
    def crop(self, tokens_to_remove: int) -> NoReturn:
        self._refuse("crop")

    @override
    def reorder_cache(self, beam_idx: Tensor) -> NoReturn:
        self._refuse("reorder_cache")

    @override
    def reset(self) -> NoReturn:
        self._refuse("reset")

    @override
    def batch_repeat_interleave(self, repeats: int) -> NoReturn:
        self._refuse("batch_repeat_interleave")

    @override
    def batch_select_indices(self, indices: Tensor) -> NoReturn:
        self._refuse("batch_select_indices")

    def _refuse(self, method: str) -> NoReturn:
        raise CacheError(
            f"Cache: {method} works on all layers at once, got layer {self._number}\n"
            f"  hint: call cache.{method}, not cache.layers[{self._number}].{method}"
        )


def _last_layer(config: PreTrainedConfig) -> int:
    """Return the last layer that stores tokens of its own."""
    types, _ = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
    other = sorted(set(types) - _KEEPS_ALL)
    if other:
        raise CacheError(
            f"Cache: layers must store keys and values of every token, got {', '.join(other)}\n"
            "  hint: leave cache= out, so that transformers builds the one this model needs"
        )
    return max((n for n, kind in enumerate(types) if kind != "dummy"), default=0)

"""One layer of a cache, as modelling code takes it out of ``cache.layers``."""

from typing import TYPE_CHECKING, NoReturn

from torch import Tensor
from transformers.cache_utils import DynamicLayer
from typing_extensions import override

from headwise.errors import CacheError

if TYPE_CHECKING:
    from headwise.hf.cache import Cache


class CacheLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """The view of one layer: it answers, and stores through the cache it belongs to."""

    def __init__(self, cache: "Cache", number: int) -> None:
        self._cache = cache
        self._number = number

    @property
    def is_sliding(self) -> bool:  # type: ignore[override]
        """Whether masks for the layer speak of its window alone."""
        return self._cache.slides(self._number)

    @property
    def is_initialized(self) -> bool:  # type: ignore[override]
        """Whether the layer holds tokens."""
        return self._cache.length_of(self._number) > 0

    @property
    def keys(self) -> Tensor | None:  # type: ignore[override]
        """The stored keys, without a copy; ``None`` before the first ones."""
        return self._cache.read(self._number)[0] if self.is_initialized else None

    @property
    def values(self) -> Tensor | None:  # type: ignore[override]
        """The stored values, without a copy; ``None`` before the first ones."""
        return self._cache.read(self._number)[1] if self.is_initialized else None

    @override
    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        return self._cache.update(key_states, value_states, self._number)

    @override
    def get_seq_length(self) -> int:
        return self._cache.get_seq_length(self._number)

    @override
    def get_max_length(self) -> int:
        return self._cache.get_max_length(self._number)

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

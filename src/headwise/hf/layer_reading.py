"""Keys and values of one layer between the model's ``update`` and the attention that reads them."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from headwise.cache import Stored
from headwise.errors import CacheError
from headwise.hf.cached_tensor import CachedTensor, Reading
from headwise.ops import attend
from headwise.patterns import Pattern

if TYPE_CHECKING:
    from headwise.hf.cache import Cache

_LOST = -1


class Form(NamedTuple):
    """What the keys and values of a layer look like to the model, apart from their number."""

    heads: int
    dims: tuple[int, int]
    dtype: torch.dtype
    device: torch.device


class LayerReading(Reading):
    """What one layer holds, with new tokens that are stored when it is first read.

    A cache appends and attends in one call, so new tokens wait for the attention that follows
    ``update``. Whoever asks the cache anything before has them stored first.
    """

    def __init__(
        self, cache: "Cache", layer: int, new: tuple[Tensor, Tensor] | None, form: Form
    ) -> None:
        self.layer = layer
        self._cache = cache
        self._new = new
        self._form = form
        self._stored: Stored | None = None
        self._made: tuple[Tensor, Tensor] | None = None
        self._changes = cache.changes_of(layer)
        store = cache.stores.of(layer)
        self._batch = int(store.lengths(layer).shape[0]) if new is None else new[0].shape[0]
        self._total = store.length(layer) + (0 if new is None else new[0].shape[2])
        # Other attention than ours has masks for what a sliding layer of its own cache would hold.
        self._slides = cache.slides(layer)
        self._shown = self._total
        if self._slides:
            past = cache.stores.window_of(layer) or 0
            seen = past if new is None else past - 1 + new[0].shape[2]
            self._shown = min(self._total, seen)

    def tensors(self) -> tuple[CachedTensor, CachedTensor]:
        """Return keys and values as tensors that are read here."""
        heads, dims, kind, place = self._form
        size = (self._batch, heads, self._shown)
        key, value = (
            CachedTensor(self, side, (*size, dim), kind, place) for side, dim in enumerate(dims)
        )
        return key, value

    def store(self) -> None:
        """Store the tokens that wait, without reading them."""
        new = self._taken()
        if new is not None:
            self._stored = self._cache.stores.of(self.layer).append(*new, layer=self.layer)
            self._changes = self._cache.changed(self.layer)

    @override
    def is_with(self, other: Reading) -> bool:
        if not isinstance(other, LayerReading):
            return False
        place, there = (
            (id(reading._cache), reading.layer, reading._changes) for reading in (self, other)
        )
        return place == there

    @override
    def attend(self, query: Tensor, pattern: Pattern, dropout_p: float, **extras: Any) -> Tensor:
        if self._slides:
            return attend(query, *self._both(), pattern, dropout_p=dropout_p, **extras)
        self._check()
        new = self._taken()
        key, value = (None, None) if new is None else new
        output = self._cache.stores.of(self.layer).attend(
            *(query, key, value, pattern), layer=self.layer, dropout_p=dropout_p, **extras
        )
        if new is not None:
            self._changes = self._cache.changed(self.layer)
        return output

    @override
    def plain(self, side: int) -> Tensor:
        return self._both()[side]

    def _taken(self) -> tuple[Tensor, Tensor] | None:
        """Return the new tokens, to be stored now; if that fails nothing can be read here."""
        new, self._new = self._new, None
        if new is not None:
            self._changes = _LOST
        return new

    def _both(self) -> tuple[Tensor, Tensor]:
        if self._made is None:
            self._check()
            self.store()
            self._made = self._gathered()
        return self._made

    def _gathered(self) -> tuple[Tensor, Tensor]:
        window = self._cache.stores.window_of(self.layer)
        if window is not None and not self._slides and self._total > window:
            raise CacheError(
                f"Cache: a window of {window} tokens is kept by headwise's attention alone, and "
                f"other code reads the {self._total} tokens of layer {self.layer}\n"
                "  hint: load the model with attn_implementation='headwise' and without "
                "output_attentions, or build the cache without a window"
            )
        stored = self._stored or self._cache.stores.of(self.layer).stored(self.layer)
        return stored.key.to(self._form.dtype), stored.value.to(self._form.dtype)

    def _check(self) -> None:
        if self._changes != self._cache.changes_of(self.layer):
            raise CacheError(
                f"Cache: layer {self.layer} has changed since these keys and values were handed "
                "out\n  hint: read them before the next token, or keep a copy, tensor.clone()"
            )

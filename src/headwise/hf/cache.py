"""A transformers cache for ``generate`` that stores in ``headwise.KVCache``."""

import copy
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import DummyLayer, DynamicCache
from typing_extensions import override

from headwise.cache import KVCache, PagePool
from headwise.errors import CacheError
from headwise.hf.cache_layer import CacheLayer
from headwise.hf.layer_reading import Form, LayerReading
from headwise.hf.layer_stores import LayerStores, Window, check_window, plan_of

_NOTHING: Any = DummyLayer


class Cache(DynamicCache):
    """Keys and values of a transformers model, stored as ``headwise.KVCache`` stores them.

    Give it to a model or to ``generate`` as ``cache=``; for an encoder-decoder model, two of them
    in ``EncoderDecoderCache``. With ``attn_implementation="headwise"``, 8 bits, pages and windows
    are read where they lie; any other attention gets ordinary tensors made from them.

    A forward pass that fails before its last layer has handed over its tokens does not count; the
    next pass takes it back, and so do ``crop``, ``fork`` and whatever else changes or copies the
    cache. In the very first pass that takes a ``config``, which tells how many layers there are.
    One that fails later looks finished from in here, and its tokens stay: with ``length`` from
    ``get_seq_length()`` before the pass, ``crop(length - cache.get_seq_length())`` takes them
    back; from a window up to ``rollback`` of them, and for more go on with a ``fork`` made before.

    Args:
        config: Configuration of the model; ``None`` = layers are counted as they come.
        capacity: Room in tokens, allocated once and never moved; ``None`` = the room grows.
        window: The last tokens that every query sees, itself included, in room that does not
            grow; a sliding layer keeps its own window where that is shorter. This changes what
            layers see that attend to everything. ``"model"`` keeps what the sliding layers of the
            model see, and all tokens in the others: the same numbers, in less room. ``None`` =
            all layers keep all tokens, those with a sliding window too.
        keep_first: First tokens that the window never drops.
        rollback: Tokens that ``crop`` can take back from a window, such as the candidates of
            assisted decoding; those of a failed pass of no more than ``rollback`` count among them.
        dtype: What is stored: ``torch.int8`` with a scale per token and head, or a floating-point
            dtype; ``None`` = what the model computes in.
        pool: A ``headwise.PagePool`` whose pages the layers share with other caches.

    Raises:
        CacheError: A model with layers that do not store keys and values of every token;
            otherwise as ``KVCache``.

    Example:
        >>> import headwise as hw
        >>> cache = hw.hf.Cache()
        >>> cache.get_seq_length(), cache.nbytes
        (0, 0)
    """

    def __init__(
        self,
        config: PreTrainedConfig | None = None,
        *,
        capacity: int | None = None,
        window: Window = None,
        keep_first: int = 0,
        rollback: int = 16,
        dtype: torch.dtype | None = None,
        pool: PagePool | None = None,
    ) -> None:
        super().__init__()
        if config is not None and not isinstance(config, PreTrainedConfig):
            raise TypeError(
                f"Cache: config must be a configuration, got {type(config).__name__}\n"
                "  hint: of a model it is model.config"
            )
        check_window(window, keep_first, config)
        options = {"capacity": capacity, "rollback": rollback, "dtype": dtype, "pool": pool}
        self.stores = LayerStores(window, keep_first, plan_of(config), options)
        self._config = None if config is None else config.get_text_config(decoder=True)
        self._forms: dict[int, Form] = {}
        self._waiting: LayerReading | None = None
        self._versions: dict[int, int] = {}
        self._before: dict[int | None, KVCache] = {}
        self._at = -1
        if self.stores.plan.last is not None:
            self._make_layers(self.stores.plan.last)

    @property
    def store(self) -> KVCache:
        """The cache of all layers that keep equally many tokens as layer 0."""
        self._settle()
        return self.stores.of(0)

    @override
    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        self._settle()
        if layer_idx <= self._at or self._at < 0:
            self._begin(layer_idx, key_states.shape[2])
        self._at = layer_idx
        self._make_layers(layer_idx)
        heads, dims = key_states.shape[1], (key_states.shape[3], value_states.shape[3])
        form = Form(heads, dims, key_states.dtype, key_states.device)
        if self._is_plain(layer_idx, form):
            stored = self.stores.of(layer_idx).append(key_states, value_states, layer=layer_idx)
            self.changed(layer_idx)
            self._forms[layer_idx] = form
            return stored.key, stored.value
        reading = LayerReading(self, layer_idx, (key_states, value_states), form)
        self._forms[layer_idx] = form
        self._waiting = reading
        return reading.tensors()

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer that holds some, without a copy."""
        self._settle()
        form = self._forms[layer]
        if not self._is_plain(layer, form):
            return LayerReading(self, layer, None, form).tensors()
        stored = self.stores.of(layer).stored(layer)
        return stored.key, stored.value

    def length_of(self, layer: int) -> int:
        """Return how many tokens a layer has taken, those of an unfinished pass included."""
        self._settle()
        return self.stores.of(layer).length(layer)

    @override
    def get_seq_length(self, layer_idx: int = 0) -> int:
        if layer_idx in self.stores.plan.empty:
            return self._finished
        return min(self.length_of(layer_idx), self._finished)

    @override
    def get_max_length(self, layer_idx: int | None = None) -> int:
        capacity: int | None = self.stores.options["capacity"]
        return -1 if capacity is None else capacity

    @override
    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        past = self.get_seq_length(layer_idx)
        first = 0
        if self.slides(layer_idx):
            first = max(past - (self.stores.window_of(layer_idx) or 0) + 1, 0)
        return past - first + query_length, first

    def slides(self, layer: int) -> bool:
        """Say whether masks for a layer speak of its window alone.

        So they do for other attention than headwise's, which is told what the window of the model
        itself holds, as transformers' own cache tells it.
        """
        if self._config is None or self._config._attn_implementation == "headwise":
            return False
        return self.stores.keeps_own_window(layer)

    @override
    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens of every layer.

        Args:
            tokens_to_remove: Minus the number of tokens, as transformers counts; 0 removes none,
                and more than there are removes all.

        Raises:
            CacheError: A positive number; more tokens than a window can give back.
        """
        if tokens_to_remove > 0:
            raise CacheError(
                f"Cache.crop: the number of tokens to remove is given as a negative int, got "
                f"{tokens_to_remove}\n"
                "  hint: crop(-2) takes back two tokens; to keep the first n, "
                "crop(n - cache.get_seq_length())"
            )
        self._take_back(first_too=True)
        if tokens_to_remove < 0:
            self._crop_to(max(self._finished + tokens_to_remove, 0))

    @override
    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._take_back()
        with self._all_or_none(rewritten=True):
            for store in self.stores:
                store.reorder(beam_idx)
        self._all_changed()

    @override
    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(self._samples).repeat_interleave(repeats))

    @override
    def batch_select_indices(self, indices: Tensor) -> None:
        try:
            chosen = torch.arange(self._samples)[indices.to("cpu")]
        except IndexError as wrong:
            raise CacheError(
                f"Cache.batch_select_indices: indices must name samples 0 to {self._samples - 1}, "
                f"got {indices.tolist()}\n  hint: give the numbers of the samples to keep"
            ) from wrong
        self.reorder_cache(chosen)

    @override
    def reset(self) -> None:
        self._waiting = None
        with self._all_or_none():
            for store in self.stores:
                store.reset()
        self._all_changed()

    def fork(self) -> "Cache":
        """Return an independent cache that shares memory until one of the two writes to it.

        A pass that has not finished goes on in this one alone.
        """
        self._settle()
        other = copy.copy(self)
        other.stores = self.stores.forked()
        other._forms, other._versions = dict(self._forms), dict(self._versions)
        other.layers = []
        other._make_layers(len(self.layers) - 1)
        if other._is_unfinished:
            other._before = {kept: store.fork() for kept, store in self._before.items()}
            other._take_back()
        other._before = {}
        return other

    @property
    def nbytes(self) -> int:
        """Memory held by all layers, the room not yet filled included, in bytes."""
        self._settle()
        return sum(store.nbytes for store in self.stores)

    def changes_of(self, layer: int) -> int:
        """Return a number that differs whenever a layer holds other tokens than before."""
        return self._versions.get(layer, 0)

    def changed(self, layer: int) -> int:
        """Note that a layer holds other tokens than before; return its new number."""
        if self._waiting is not None and self._waiting.layer == layer:
            self._waiting = None
        self._versions[layer] = self._versions.get(layer, 0) + 1
        return self._versions[layer]

    def __repr__(self) -> str:
        self._settle()
        return f"Cache({', '.join(map(repr, self.stores))})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Cache":
        return self.fork()

    @property
    def _finished(self) -> int:
        """Tokens of the last pass that reached the last layer."""
        last = self.stores.plan.last
        return self.length_of(max(len(self.layers) - 1, 0) if last is None else last)

    @property
    def _is_unfinished(self) -> bool:
        """Whether a pass has reached the first layer and not the last, running or failed."""
        first = min(self._forms, default=None)
        return first is not None and self.length_of(first) > self._finished

    @property
    def _samples(self) -> int:
        self._settle()
        made = max(self._forms, default=None)
        return 0 if made is None else int(self.stores.of(made).lengths(made).shape[0])

    def _is_plain(self, layer: int, form: Form) -> bool:
        """Say whether what is stored is what the model reads, so that views of it will do."""
        options = self.stores.options
        as_it_is = options["dtype"] in (None, form.dtype) and options["pool"] is None
        return as_it_is and self.stores.window_of(layer) is None

    def _settle(self) -> None:
        """Store the tokens that wait for the attention that never came."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.store()

    def _make_layers(self, last: int) -> None:
        for number in range(len(self.layers), last + 1):
            empty = number in self.stores.plan.empty
            self.layers.append(_NOTHING() if empty else CacheLayer(self, number))

    def _begin(self, layer: int, tokens: int) -> None:
        """Start a pass: take back what one that failed before the last layer had stored."""
        if self.length_of(layer) > self._finished:
            self._take_back(first_too=True)
        rollback: int = self.stores.options["rollback"]
        # A window may have to drop what a long pass leaves no room for.
        self._before = self.stores.forked_windows() if tokens > rollback else {}

    def _take_back(self, *, first_too: bool = False) -> None:
        """Take back what an unfinished pass has stored.

        That of the very first pass can stay until the next begins: half the memory of an encoder
        is used as it is.
        """
        self._settle()
        finished = self._finished
        if not self._is_unfinished:
            return
        if finished > 0:
            self.stores.by_window.update(self._before)
            self._crop_to(finished)
        elif first_too:
            self.reset()

    def _crop_to(self, length: int) -> None:
        self._settle()
        with self._all_or_none():
            for store in self.stores:
                store.crop(length)
        self._all_changed()

    def _all_or_none(self, *, rewritten: bool = False) -> ExitStack:
        """Bring all stores back where a block fails in one."""
        stack = ExitStack()
        for store in self.stores:
            stack.enter_context(store._all_or_none(rewritten=rewritten))
        return stack

    def _all_changed(self) -> None:
        self._before, self._at = {}, -1
        for layer in self._forms:
            self.changed(layer)

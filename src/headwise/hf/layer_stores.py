"""Which layers of a model share one ``KVCache``: those that keep equally many tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import PreTrainedConfig
from transformers.cache_utils import get_layer_types_and_kwargs

from headwise._checks import is_int
from headwise.cache import KVCache
from headwise.errors import CacheError

Window = int | Literal["model"] | None

_KEEPS_ALL = frozenset(("full_attention", "sliding_attention", "chunked_attention", "dummy"))


@dataclass(frozen=True)
class Plan:
    """What the configuration of a model says of its layers.

    Attributes:
        windows: The sliding window of each layer, itself included; ``None`` = it sees everything.
        last: The last layer that stores tokens of its own; ``None`` = not known.
        empty: Layers that store nothing: those without attention, or that read another's tokens.
    """

    windows: tuple[int | None, ...] = ()
    last: int | None = None
    empty: frozenset[int] = frozenset()


@dataclass
class LayerStores:
    """The ``KVCache`` of every layer; layers that keep equally many tokens share one.

    Attributes:
        window: How many tokens a layer keeps; ``"model"`` = as many as its own sliding window.
        keep_first: First tokens that are never dropped.
        plan: What is known of the layers.
        options: What else every cache is built with.
        by_window: The caches there are, by the number of tokens that they keep.
    """

    window: Window
    keep_first: int
    plan: Plan
    options: dict[str, Any]
    by_window: dict[int | None, KVCache] = field(default_factory=dict)

    def __post_init__(self) -> None:
        windows = {self._kept(layer) for layer in range(len(self.plan.windows) or 1)}
        for window in sorted(windows, key=lambda kept: (kept is None, kept)):
            first = self.keep_first if window == self.window else 0
            self.by_window[window] = KVCache(window=window, keep_first=first, **self.options)

    def __iter__(self) -> Iterator[KVCache]:
        """Go through the caches, the shortest window first: it is the first to refuse a crop."""
        return iter(self.by_window.values())

    def of(self, layer: int) -> KVCache:
        """Return the cache in which a layer stores."""
        return self.by_window[self._kept(layer)]

    def window_of(self, layer: int) -> int | None:
        """Return how many tokens a layer keeps; ``None`` = all."""
        return self._kept(layer)

    def keeps_own_window(self, layer: int) -> bool:
        """Say whether a layer keeps exactly what the model lets it see."""
        kept = self._kept(layer)
        return kept is not None and kept == self._own(layer)

    def forked(self) -> "LayerStores":
        """Return stores of the same layers that share memory until one of them writes."""
        other = LayerStores(self.window, self.keep_first, self.plan, self.options)
        other.by_window = {window: store.fork() for window, store in self.by_window.items()}
        return other

    def forked_windows(self) -> dict[int | None, KVCache]:
        """Return forks of the caches that drop tokens."""
        return {kept: store.fork() for kept, store in self.by_window.items() if kept is not None}

    def _own(self, layer: int) -> int | None:
        return self.plan.windows[layer] if layer < len(self.plan.windows) else None

    def _kept(self, layer: int) -> int | None:
        own = self._own(layer)
        if self.window == "model":
            return own
        if self.window is None or own is None:
            return self.window
        return min(own, self.window)


def plan_of(config: PreTrainedConfig | None) -> Plan:
    """Read the layers of a model; a model unlike those that a ``KVCache`` serves is refused."""
    if config is None:
        return Plan()
    types, numbers = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
    other = sorted(set(types) - _KEEPS_ALL)
    if other:
        raise CacheError(
            f"Cache: layers must store keys and values of every token, got {', '.join(other)}\n"
            "  hint: leave cache= out, so that transformers builds the one this model needs"
        )
    empty = frozenset(number for number, kind in enumerate(types) if kind == "dummy")
    return Plan(
        tuple(given.get("sliding_window") or None for given in numbers),
        max((number for number in range(len(types)) if number not in empty), default=0),
        empty,
    )


def check_window(window: Window, keep_first: int, config: PreTrainedConfig | None) -> None:
    """Refuse windows that say nothing; ``KVCache`` refuses numbers that are out of range."""
    if window is None or is_int(window):
        return
    if window != "model":
        raise CacheError(
            f"Cache: window must be a number of tokens or 'model', got {window!r}\n"
            "  hint: 'model' keeps in each layer what its own sliding window sees"
        )
    if config is None:
        raise CacheError(
            "Cache: window='model' needs the configuration of the model, got none\n"
            "  hint: hf.Cache(model.config, window='model')"
        )
    if keep_first:
        raise CacheError(
            f"Cache: keep_first goes with a window in tokens, got {keep_first} and 'model'\n"
            "  hint: the mask of a sliding layer hides what lies before its window anyway"
        )

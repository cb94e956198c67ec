"""The kinds of key/value cache that ``headwise generate --cache`` takes."""

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import headwise.hf
from headwise.cache import PagePool
from headwise.cli.failures import Unable, WrongInput, first_line
from headwise.cli.packages import require_transformers
from headwise.errors import CacheError

KINDS = "growing, fixed, int8, window=N or paged"


@dataclass(frozen=True)
class CacheKind:
    """One kind of cache, as it was typed.

    Attributes:
        name: ``growing``, ``fixed``, ``int8``, ``window`` or ``paged``.
        window: The tokens that a window keeps; ``None`` for the other kinds.
    """

    name: str
    window: int | None = None

    def __str__(self) -> str:
        return self.name if self.window is None else f"{self.name}={self.window}"

    def dropped(self, tokens: int) -> int:
        """Return how many of so many tokens the last one no longer sees."""
        return 0 if self.window is None else max(tokens - self.window, 0)

    def build(self, config: Any, tokens: int) -> Any:
        """Return an empty cache for a model.

        Args:
            config: Configuration of the model.
            tokens: The most tokens that will be stored.

        Raises:
            Unable: The model has layers that no cache of this kind serves.
        """
        build = partial(headwise.hf.Cache, config)
        try:
            if self.window is not None:
                return build(window=min(self.window, tokens))
            if self.name == "fixed":
                return build(capacity=tokens)
            if self.name == "int8":
                return build(dtype=torch.int8)
            return build(pool=PagePool()) if self.name == "paged" else build()
        except CacheError as refusal:
            raise Unable(f"{first_line(refusal)}; --no-cache does without") from refusal

    def joined(self, own: Any, config: Any, tokens: int) -> Any:
        """Return a cache for an encoder-decoder model: ``own``, and one for what was read.

        The second keeps all of the source whatever the kind.

        Args:
            own: What ``build`` returned for the tokens that are written.
            config: Configuration of the model.
            tokens: Tokens of the source.
        """
        whole = CacheKind("growing") if self.name == "window" else self
        pair = require_transformers().EncoderDecoderCache
        return pair(own, whole.build(config, tokens))


def cache_kind(typed: str) -> CacheKind:
    """Read what follows ``--cache``.

    Raises:
        WrongInput: It names no kind of cache.
    """
    name, equals, number = typed.partition("=")
    if name == "window":
        if not re.fullmatch("[0-9]{1,18}", number) or int(number) < 1:
            raise WrongInput(
                f"--cache window=N takes the number of tokens that are kept, at least 1, got "
                f"{typed!r}; as in --cache window=256"
            )
        return CacheKind(name, int(number))
    if equals or name not in ("growing", "fixed", "int8", "paged"):
        raise WrongInput(f"--cache is {KINDS}, got {typed!r}")
    return CacheKind(name)

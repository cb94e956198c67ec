"""The plain patterns that a pattern of many samples and heads is made of."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.errors import PatternError
from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid


class Variants(NamedTuple):
    """The plain patterns of a call, each with its place, and which sample and head has which.

    ``which`` is (samples or 1, heads or 1) int64.
    """

    found: list[tuple[Pattern, Grid]]
    which: Tensor


_SMALL = 1 << 22  # bytes of a pattern whose parts are kept


def _plains(pattern: Pattern, samples: int, heads: int) -> tuple[Pattern, ...]:
    """Return the plain patterns of all samples and heads."""
    return tuple(pattern.sample(b, h) for b in range(samples) for h in range(heads))


# A step of decoding finds those of the step before.
_kept_plains = lru_cache(maxsize=16)(_plains)


def variants(pattern: Pattern, places: Sequence[Grid]) -> Variants:
    """Take a pattern apart into the plain ones of its samples and heads, equal ones once."""
    samples = len(places) if pattern.batch_size in (None, 1) else pattern.batch_size
    if len(places) not in (1, samples):
        raise PatternError(
            f"{type(pattern).__name__}: offsets are given for {len(places)} samples, "
            f"but the pattern holds {samples}\n"
            "  hint: give one offset per sample of the pattern, or one int for all"
        )
    heads = 1 if pattern.num_heads is None else pattern.num_heads
    numbers: dict[tuple[Pattern, Grid], int] = {}
    plains = (_kept_plains if pattern.nbytes < _SMALL else _plains)(pattern, samples, heads)
    which = [
        numbers.setdefault((plain, places[n // heads if len(places) > 1 else 0]), len(numbers))
        for n, plain in enumerate(plains)
    ]
    table = torch.tensor(which, dtype=torch.int64, device="cpu").view(samples, heads)
    return Variants(list(numbers), table)

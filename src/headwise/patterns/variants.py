"""The plain patterns that a pattern of many samples and heads is made of."""

from collections.abc import Sequence
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
    which = [
        numbers.setdefault(
            (pattern.sample(b, h), places[b if len(places) > 1 else 0]), len(numbers)
        )
        for b in range(samples)
        for h in range(heads)
    ]
    table = torch.tensor(which, dtype=torch.int64, device="cpu").view(samples, heads)
    return Variants(list(numbers), table)

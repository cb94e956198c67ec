"""Counts of tokens: one int where all rows of a batch are alike, or one for each row."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from headwise.errors import CacheError, PatternError
from headwise.patterns.counts import whole_numbers

RowCounts: TypeAlias = int | tuple[int, ...]


def each(rule: Callable[..., int], *counts: RowCounts) -> RowCounts:
    """Apply a rule to the counts of every row; rows that come out alike give one int."""
    batch = next((len(count) for count in counts if isinstance(count, tuple)), None)
    if batch is None:
        return rule(*counts)
    rows = zip(*(listed(count, batch) for count in counts), strict=True)
    return gathered([rule(*row) for row in rows])


def gathered(counts: Sequence[int]) -> RowCounts:
    """Return one count for each row as one int where they are alike."""
    if not counts:
        return 0
    return counts[0] if all(count == counts[0] for count in counts) else tuple(counts)


def listed(counts: RowCounts, batch: int) -> list[int]:
    """Return one count for each row."""
    return list(counts) if isinstance(counts, tuple) else [counts] * batch


def longest(counts: RowCounts) -> int:
    """Return the largest count."""
    return max(counts) if isinstance(counts, tuple) else counts


def picked(counts: RowCounts, index: Tensor) -> RowCounts:
    """Return the counts of the rows that ``index`` names."""
    if not isinstance(counts, tuple):
        return counts
    return gathered([counts[row] for row in index.tolist()])


def as_tensor(counts: RowCounts, batch: int) -> Tensor:
    """Return one count for each row, (batch,) int64 on the CPU."""
    return torch.tensor(listed(counts, batch), dtype=torch.int64, device="cpu")


def appended_counts(
    q_lengths: Sequence[int] | Tensor | None, batch: int, tokens: int, caller: str
) -> RowCounts:
    """Return how many of ``tokens`` each row appends, all where nothing else is said."""
    if q_lengths is None:
        return tokens
    hint = "say for each row how many of the first tokens given are real"
    try:
        found = whole_numbers("q_lengths", q_lengths)
    except PatternError as wrong:
        raise CacheError(f"{caller}: {str(wrong).splitlines()[0]}\n  hint: {hint}") from None
    counts = listed(found, batch)
    if len(counts) != batch or any(not 0 <= count <= tokens for count in counts):
        raise CacheError(
            f"{caller}: q_lengths must hold one number for each of {batch} rows, 0 to {tokens}, "
            f"got {counts}\n  hint: {hint}"
        )
    return gathered(counts)


def position_counts(
    name: str, offset: int | Tensor | Sequence[int], batch: int, caller: str
) -> RowCounts:
    """Return positions of all rows, or of each, as counts."""
    found = whole_numbers(f"{name}:", offset)
    if isinstance(found, int):
        return found
    if len(found) not in (1, batch):
        raise PatternError(
            f"{caller}: {name} must be one int, or one per sample, got {len(found)} for {batch} "
            "samples\n  hint: the samples are the rows of the cache"
        )
    return gathered(found)

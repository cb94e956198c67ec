"""Sets of integers as sorted, disjoint, half-open intervals."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Interval: TypeAlias = tuple[int, int]
Intervals: TypeAlias = tuple[Interval, ...]

FAR = 1 << 60
EVERYTHING: Intervals = ((-FAR, FAR),)
NOTHING: Intervals = ()


def between(low: int, high: int) -> Intervals:
    """Return the integers from ``low`` up to but not including ``high``."""
    return ((low, high),) if low < high else NOTHING


def normalise(pieces: Iterable[Interval]) -> Intervals:
    """Sort ``pieces``, drop empty ones, join those that touch."""
    merged: list[Interval] = []
    for low, high in sorted(piece for piece in pieces if piece[0] < piece[1]):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def union(a: Intervals, b: Intervals) -> Intervals:
    """Return what is in ``a`` or ``b``."""
    if not a or not b:
        return a or b
    return normalise((*a, *b))


def intersection(a: Sequence[Interval], b: Intervals) -> Intervals:
    """Return what is in both."""
    found: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low < high:
            found.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def complement(a: Intervals) -> Intervals:
    """Return every integer that is not in ``a``."""
    edges = [-FAR, *(edge for piece in a for edge in piece), FAR]
    return tuple(
        (low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low < high
    )


def covers(a: Intervals, low: int, high: int) -> bool:
    """Say whether every integer from ``low`` up to ``high`` is in ``a``."""
    return low >= high or any(first <= low and high <= last for first, last in a)


def runs(flags: Sequence[bool]) -> Intervals:
    """Return the index ranges in which ``flags`` is true."""
    edges = [
        i for i, (a, b) in enumerate(zip([False, *flags], [*flags, False], strict=True)) if a != b
    ]
    return tuple(zip(edges[::2], edges[1::2], strict=True))

"""Counts which backends ran, for reports about a whole model."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_open: list[Counter[str]] = []


@contextmanager
def tally() -> Iterator[Counter[str]]:
    """Count the attention calls of each backend while the block runs, on any thread."""
    counted: Counter[str] = Counter()
    _open.append(counted)
    try:
        yield counted
    finally:
        _open.remove(counted)


def count(backend: str) -> None:
    """Add one call to every open tally."""
    for counted in _open:
        counted[backend] += 1

"""Tests of single rows of docs/migrating/patterns.md."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from headwise.patterns import Pattern

Check = TypeVar("Check", bound=Callable[[], None])

TESTED: set[str] = set()


def row(first_column: str) -> Callable[[Check], Check]:
    """Name the row that a test is for by its first column."""

    def keep(check: Check) -> Check:
        TESTED.add(first_column)
        return check

    return keep


def same(pattern: Pattern, mask: Tensor, **offsets: Any) -> None:
    """Demand that a pattern allows the pairs of a mask, and no others."""
    found = pattern.dense(*mask.shape[-2:], **offsets)
    assert torch.equal(found.expand(mask.shape), mask.bool())

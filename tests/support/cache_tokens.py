"""Tokens for caches: 4 query heads over 2 of keys and values."""

from collections.abc import Callable

import torch
from torch import Tensor

Tokens = tuple[Tensor, Tensor, Tensor]


def tokens(count: int, batch: int = 2) -> Tokens:
    """Return query, key and value of so many tokens."""
    return (
        torch.randn(batch, 4, count, 8),
        torch.randn(batch, 2, count, 8),
        torch.randn(batch, 2, count, 6),
    )


def each(rule: Callable[[Tensor], Tensor], given: Tokens) -> Tokens:
    """Apply a rule to query, key and value."""
    query, key, value = given
    return rule(query), rule(key), rule(value)


def piece(given: Tokens, start: int, end: int) -> Tokens:
    """Return some of the tokens."""
    return each(lambda rows: rows[:, :, start:end], given)


def row(given: Tokens, number: int) -> Tokens:
    """Return one row as a batch."""
    return each(lambda rows: rows[number : number + 1], given)

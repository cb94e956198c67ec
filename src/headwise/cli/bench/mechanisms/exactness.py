"""Exact attention in float64 without a table of all pairs, and how far an answer is from it."""

import torch
from torch import Tensor

from headwise.cli.bench.mechanisms.states import States

# Scores held at a time.
_AT_ONCE = 1 << 22


def precise(states: States, causal: bool) -> Tensor:
    """Return softmax attention by the formula, computed in float64 some rows at a time."""
    query, key, value = states.to(torch.float64)
    length = key.shape[2]
    rows = max(_AT_ONCE // (query.shape[1] * length), 1)
    parts = []
    for first in range(0, length, rows):
        asked = query[:, :, first : first + rows]
        last = first + asked.shape[2]
        seen = last if causal else length
        scores = asked @ key[:, :, :seen].transpose(-1, -2) * query.shape[-1] ** -0.5
        if causal:
            later = torch.ones(asked.shape[2], seen, dtype=torch.bool).triu(first + 1)
            scores = scores.masked_fill(later, float("-inf"))
        parts.append(scores.softmax(-1) @ value[:, :, :seen])
    return torch.cat(parts, 2)


def error_of(found: Tensor, exact: Tensor) -> float:
    """Return how large the difference is, as a share of ``exact``; both by the Frobenius norm."""
    return float((found.double() - exact).norm() / exact.norm())

"""Stateless operations on (batch, heads, length, dim)."""

from headwise.ops.softmax import (
    Attended,
    Plan,
    attend,
    attend_with_lse,
    attention_weights,
    explain,
    explain_sizes,
    merge,
    tally,
)

__all__ = [
    "Attended",
    "Plan",
    "attend",
    "attend_with_lse",
    "attention_weights",
    "explain",
    "explain_sizes",
    "merge",
    "tally",
]

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
from headwise.ops.softmax.stored import StoredKeys, attend_stored, attend_stored_with_lse

__all__ = [
    "Attended",
    "Plan",
    "StoredKeys",
    "attend",
    "attend_stored",
    "attend_stored_with_lse",
    "attend_with_lse",
    "attention_weights",
    "explain",
    "explain_sizes",
    "merge",
    "tally",
]

"""Stateless operations on (batch, heads, length, dim)."""

from headwise.ops.linear.api import LinearAttended, linear_attend
from headwise.ops.linear.features import FeatureMap, Features
from headwise.ops.linear.state import LinearState
from headwise.ops.linear.weights import linear_attention_weights
from headwise.ops.lowrank import lowrank_attend
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
    "FeatureMap",
    "Features",
    "LinearAttended",
    "LinearState",
    "Plan",
    "StoredKeys",
    "attend",
    "attend_stored",
    "attend_stored_with_lse",
    "attend_with_lse",
    "attention_weights",
    "explain",
    "explain_sizes",
    "linear_attend",
    "linear_attention_weights",
    "lowrank_attend",
    "merge",
    "tally",
]

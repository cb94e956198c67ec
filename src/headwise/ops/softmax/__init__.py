"""Softmax attention: one definition, several backends."""

from headwise.ops.softmax.api import attend, attend_with_lse, attention_weights, explain
from headwise.ops.softmax.call import Attended
from headwise.ops.softmax.merge import merge
from headwise.ops.softmax.plan import Plan
from headwise.ops.softmax.sizes import explain_sizes
from headwise.ops.softmax.tally import tally

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

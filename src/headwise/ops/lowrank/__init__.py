"""Low-rank attention: keys and values projected along length before softmax attention."""

from headwise.ops.lowrank.api import lowrank_attend

__all__ = ["lowrank_attend"]

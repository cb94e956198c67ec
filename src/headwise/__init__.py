"""Attention for PyTorch: one call, one layer, one cache."""

from headwise import nn, patterns
from headwise.cache import KVCache
from headwise.errors import (
    BackendRefused,
    CacheError,
    DtypeError,
    NativeMissingWarning,
    PatternError,
    ShapeError,
)
from headwise.nn import MultiHeadAttention
from headwise.ops import Attended, Plan, attend, attend_with_lse, attention_weights, explain
from headwise.patterns import (
    Causal,
    Dense,
    Documents,
    Full,
    KeyMask,
    Lengths,
    Prefix,
    Window,
)

__all__ = [
    "Attended",
    "BackendRefused",
    "CacheError",
    "Causal",
    "Dense",
    "Documents",
    "DtypeError",
    "Full",
    "KVCache",
    "KeyMask",
    "Lengths",
    "MultiHeadAttention",
    "NativeMissingWarning",
    "PatternError",
    "Plan",
    "Prefix",
    "ShapeError",
    "Window",
    "attend",
    "attend_with_lse",
    "attention_weights",
    "explain",
    "nn",
    "patterns",
]

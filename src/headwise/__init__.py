"""Attention for PyTorch: one call, one layer, one cache."""

from headwise import hf, nn, patterns, positions
from headwise.cache import KVCache
from headwise.errors import (
    BackendRefused,
    CacheError,
    DtypeError,
    NativeMissingWarning,
    PatternError,
    ShapeError,
)
from headwise.info import Info, info
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
    "Info",
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
    "hf",
    "info",
    "nn",
    "patterns",
    "positions",
]

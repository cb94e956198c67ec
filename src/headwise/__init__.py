"""Attention for PyTorch: one call, one layer, one cache."""

from headwise import _interrupts, hf, inspection, nn, patterns, positions  # noqa: F401
from headwise._strict import strict
from headwise.cache import KVCache, PagePool
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
from headwise.ops import (
    Attended,
    Plan,
    attend,
    attend_with_lse,
    attention_weights,
    explain,
    merge,
)
from headwise.patterns import (
    BlockWindow,
    Causal,
    Dense,
    Documents,
    Full,
    GlobalTokens,
    KeyMask,
    Lengths,
    PerHead,
    Prefix,
    RandomBlocks,
    Strided,
    Window,
)

__all__ = [
    "Attended",
    "BackendRefused",
    "BlockWindow",
    "CacheError",
    "Causal",
    "Dense",
    "Documents",
    "DtypeError",
    "Full",
    "GlobalTokens",
    "Info",
    "KVCache",
    "KeyMask",
    "Lengths",
    "MultiHeadAttention",
    "NativeMissingWarning",
    "PagePool",
    "PatternError",
    "PerHead",
    "Plan",
    "Prefix",
    "RandomBlocks",
    "ShapeError",
    "Strided",
    "Window",
    "attend",
    "attend_with_lse",
    "attention_weights",
    "explain",
    "hf",
    "info",
    "inspection",
    "merge",
    "nn",
    "patterns",
    "positions",
    "strict",
]

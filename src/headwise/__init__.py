"""Attention for PyTorch: one call, one layer, one cache."""

from typing import TYPE_CHECKING

from headwise import _interrupts, export, hf, inspection, nn, patch, patterns, positions  # noqa: F401
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
    LinearAttended,
    LinearState,
    Plan,
    attend,
    attend_with_lse,
    attention_weights,
    explain,
    linear_attend,
    linear_attention_weights,
    lowrank_attend,
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

if TYPE_CHECKING:
    from headwise import models

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
    "LinearAttended",
    "LinearState",
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
    "export",
    "hf",
    "info",
    "inspection",
    "linear_attend",
    "linear_attention_weights",
    "lowrank_attend",
    "merge",
    "models",
    "nn",
    "patch",
    "patterns",
    "positions",
    "strict",
]


def __getattr__(name: str) -> object:
    """Import what needs the extra ``hf`` when it is first asked for."""
    if name == "models":
        import headwise.models

        return headwise.models
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

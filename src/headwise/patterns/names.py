"""The names that patterns have in text."""

from collections.abc import Callable
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor

from headwise.errors import PatternError
from headwise.patterns import presets
from headwise.patterns.base import Pattern
from headwise.patterns.blocks import BlockWindow, GlobalBlocks
from headwise.patterns.causal import Causal, Full
from headwise.patterns.chosen_tiles import Tiles
from headwise.patterns.dense import Dense, KeyMask
from headwise.patterns.documents import Documents
from headwise.patterns.global_tokens import GlobalTokens
from headwise.patterns.per_head import PerHead
from headwise.patterns.random_blocks import RandomBlocks
from headwise.patterns.segments import Lengths, Prefix
from headwise.patterns.strided import Fixed, Strided
from headwise.patterns.window import Window

KINDS: dict[str, Callable[..., Pattern]] = {
    "full": Full,
    "causal": Causal,
    "window": Window,
    "sliding_causal": presets.sliding_causal,
    "strided": Strided,
    "fixed": Fixed,
    "global": GlobalTokens,
    "longformer": presets.longformer,
    "block_window": BlockWindow,
    "global_blocks": GlobalBlocks,
    "random_blocks": RandomBlocks,
    "bigbird": presets.bigbird,
    "prefix": Prefix,
    "lengths": Lengths,
    "documents": Documents,
    "key_mask": KeyMask,
    "dense": Dense,
    "tiles": Tiles,
    "per_head": PerHead,
}
# What stands for a value of Python, folded as ``fold`` does.
WORDS = {
    **{"none": None, "true": True, "false": False},
    **{str(dtype): dtype for dtype in (torch.bool, torch.int32, torch.int64)},
}


def fold(name: str) -> str:
    """Return a name without what may be written one way or another."""
    return name.replace("_", "").lower()


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Build the tensor without elements that a ``repr`` may hold."""
    if 0 not in shape:
        raise PatternError(
            f"torch.empty: one of the sizes must be 0, got {shape}\n"
            "  hint: numbers are written as lists, such as [[0, 1], [1, 1]]"
        )
    return torch.empty(shape, dtype=dtype, device="cpu")


CALLED: dict[str, Callable[..., Any]] = {
    **{fold(name): kind for name, kind in KINDS.items()},
    "globaltokens": GlobalTokens,
    "torch.empty": _empty,
}


def suggested(name: str) -> str:
    """Say which names there are, the one that was probably meant first."""
    near = get_close_matches(fold(name), [fold(known) for known in KINDS], 1)
    meant = [known for known in KINDS if near and fold(known) == near[0]]
    return "".join(f"is it {known}? " for known in meant) + f"there are {', '.join(KINDS)}"


def arguments(kind: Callable[..., Any]) -> str:
    """Return the arguments of a pattern, with their defaults."""
    return ", ".join(
        part.name if part.default is Parameter.empty else f"{part.name}={part.default}"
        for part in signature(kind).parameters.values()
    )

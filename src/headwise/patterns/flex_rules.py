"""Patterns as functions of single pairs, in the form that compilers of mask functions can follow.

Such a function is asked for one pair at a time: it may read single numbers from tensors, and
neither looks along an axis nor chooses in Python. Where samples or heads differ by the numbers
they hold, one function therefore reads the numbers of all of them. What changes from call to call
is held in tensors, so that a compiled function serves the next call, too.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from headwise.patterns.base import Pattern
from headwise.patterns.chosen_tiles import Tiles
from headwise.patterns.combine import Both, Either, Not
from headwise.patterns.dense import Dense, KeyMask
from headwise.patterns.documents import Documents
from headwise.patterns.flex_leaves import (
    Place,
    Rule,
    dense,
    documents,
    global_tokens,
    key_mask,
    lengths,
    prefix,
    random_blocks,
    reader,
    tiles,
)
from headwise.patterns.global_tokens import GlobalTokens
from headwise.patterns.grid import Grid
from headwise.patterns.per_head import PerHead
from headwise.patterns.random_blocks import RandomBlocks
from headwise.patterns.segments import Lengths, Prefix
from headwise.patterns.variants import variants

_Written: TypeAlias = Callable[..., Rule]
_LEAVES: dict[type[Pattern], _Written] = {
    Dense: dense,
    KeyMask: key_mask,
    Tiles: tiles,
    Documents: documents,
    GlobalTokens: global_tokens,
    Prefix: prefix,
    Lengths: lengths,
}


def rule(pattern: Pattern, places: tuple[Grid, ...], device: torch.device) -> Rule:
    """Return the pattern as a function of (sample, head, query index, key index).

    Args:
        pattern: Who may attend to whom; it must fit the call.
        places: One grid for all samples, or one per sample.
        device: Where the tensors that the function reads are kept.
    """
    return _rule(pattern, places, Place.of(places, device))


def _rule(pattern: Pattern, places: tuple[Grid, ...], place: Place) -> Rule:
    match pattern:
        case Both(first=a, second=b):
            return _both(_rule(a, places, place), _rule(b, places, place))
        case Either(first=a, second=b):
            return _either(_rule(a, places, place), _rule(b, places, place))
        case Not(inner=a):
            return _not(_rule(a, places, place))
        case PerHead(patterns=parts):
            kinds = list(dict.fromkeys(parts))
            which = torch.tensor([[kinds.index(part) for part in parts]], device="cpu")
            return _chosen([_rule(kind, places, place) for kind in kinds], which, place)
    written = _LEAVES.get(type(pattern))
    if written is not None:
        return written(pattern, place)
    told = variants(pattern, places)
    placed = [plain.placed(grid) for plain, grid in told.found]
    kinds = list(dict.fromkeys(placed))
    which = torch.tensor([kinds.index(plain) for plain in placed], device="cpu")[told.which]
    return _chosen([_plain(kind, place) for kind in kinds], which, place)


def _plain(placed: Pattern, place: Place) -> Rule:
    """Return the rule of a leaf that reads no tensor, or whose tensors know their place."""
    if isinstance(placed, RandomBlocks):
        return random_blocks(placed, place)
    query, key = place.query, place.key
    return lambda b, h, q, k: placed._allows(query(b, q), key(b, k))


def _chosen(rules: list[Rule], which: Tensor, place: Place) -> Rule:
    """Return the rule that asks, in each sample and head, the one of its number."""
    first, *others = rules
    if not others:
        return first
    number = reader(which, place.device)

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        mine, seen = number(b, h), first(b, h, q, k)
        for n, other in enumerate(others, 1):
            seen = torch.where(mine == n, other(b, h, q, k), seen)
        return seen

    return sees


def _both(first: Rule, second: Rule) -> Rule:
    return lambda b, h, q, k: first(b, h, q, k) & second(b, h, q, k)


def _either(first: Rule, second: Rule) -> Rule:
    return lambda b, h, q, k: first(b, h, q, k) | second(b, h, q, k)


def _not(inner: Rule) -> Rule:
    return lambda b, h, q, k: ~inner(b, h, q, k)

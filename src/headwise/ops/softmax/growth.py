"""How many keys a query sees, as a formula of the length."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.patterns.base import Pattern
from headwise.patterns.blocks import BlockWindow, GlobalBlocks
from headwise.patterns.causal import Causal
from headwise.patterns.combine import Both, Either, Not
from headwise.patterns.content import Content
from headwise.patterns.documents import Documents
from headwise.patterns.global_tokens import GlobalTokens
from headwise.patterns.per_head import PerHead
from headwise.patterns.random_blocks import RandomBlocks
from headwise.patterns.segments import Lengths, Prefix
from headwise.patterns.strided import Fixed, Strided
from headwise.patterns.window import Window


class Seen(NamedTuple):
    """About how many keys a query sees: ``share`` of all keys, and ``constant`` besides.

    Ordered by what counts more the longer the input is.
    """

    share: float
    constant: int

    def __str__(self) -> str:
        share = ""
        if self.share == 1.0:
            share = "kv_len"
        elif self.share:
            part = 1 / self.share
            whole = abs(part - round(part)) < 1e-9
            share = f"kv_len/{round(part)}" if whole else f"{self.share:.3g} · kv_len"
        if not share:
            return f"{self.constant:,}"
        return f"({self.constant:,} + {share})" if self.constant else share


_ALL = Seen(1.0, 0)
_HALF = Seen(0.5, 0)


def keys_seen(pattern: Pattern) -> Seen:
    """Return about how many keys a query sees, on average over a long input.

    Queries that see every key count with what they add to that average. What is spelled out by a
    mask, and what is not known, counts as all keys; of what is joined by ``&`` the part that shows
    the fewest keys counts, behind ``Causal`` with what is left of it.
    """
    rule = _RULES.get(type(pattern))
    return _ALL if rule is None else rule(pattern)


def _window(left: int | None, right: int | None, block: int, step: int) -> Seen:
    """Return what a window sees; a side without bound has half of all keys."""
    sides = [side for side in (left, right) if side is not None]
    if len(sides) == 2:
        return Seen(0.0, (sum(sides) + 1) * block)
    return Seen((2 - len(sides)) / 2 / step, sum(sides) * block)


def _behind(left: int | None, block: int, step: int) -> Seen:
    """Return what a window sees up to the query itself, which stands anywhere in its block."""
    return Seen(0.5 / step, 0) if left is None else Seen(0.0, left * block + (block + 1) // 2)


def _strided(pattern: Strided) -> Seen:
    return _ALL if pattern.stride == 1 else Seen(1 / pattern.stride, 2 * pattern.stride - 1)


def _past(pattern: Pattern) -> Seen:
    """Return what is left of a pattern where ``Causal`` hides what comes later."""
    if isinstance(pattern, Window):
        return _behind(pattern.left, 1, pattern.dilation)
    if isinstance(pattern, BlockWindow):
        return _behind(pattern.left, pattern.block, 1)
    if isinstance(pattern, Either):
        return _sum(_past(pattern.first), _past(pattern.second), _HALF)
    if isinstance(pattern, PerHead):
        return max(_past(part) for part in pattern.patterns)
    seen = keys_seen(pattern)
    if isinstance(pattern, Causal | Prefix | Lengths):
        return min(seen, _HALF)
    # What is left looks ahead as far as it looks back.
    return Seen(seen.share / 2, (seen.constant + 1) // 2)


def _parts(pattern: Pattern) -> Iterator[Pattern]:
    """Go through all that is joined by ``&``."""
    if isinstance(pattern, Both):
        yield from _parts(pattern.first)
        yield from _parts(pattern.second)
    else:
        yield pattern


def _both(pattern: Both) -> Seen:
    parts = list(_parts(pattern))
    causal = any(isinstance(part, Causal) for part in parts)
    return min(map(_past if causal else keys_seen, parts))


def _counted(counts: int | tuple[int, ...] | Content) -> Seen:
    if isinstance(counts, Content):
        return _ALL
    return Seen(0.0, counts if isinstance(counts, int) else max(counts, default=0))


def _sum(a: Seen, b: Seen, most: Seen) -> Seen:
    return min(Seen(a.share + b.share, a.constant + b.constant), most)


def _chosen(which: tuple[int, ...] | Content) -> int:
    if isinstance(which, tuple):
        return len(which)
    chosen = which.tensor
    return int(chosen.sum(-1).max()) if chosen.numel() else 0


def _longest(pattern: Documents) -> int:
    """Count the keys of the longest document."""
    numbers: Tensor = (pattern.ids if pattern.kv_ids is None else pattern.kv_ids).tensor
    rows = numbers.unsqueeze(0) if numbers.ndim == 1 else numbers
    counts = [torch.unique(row[row >= 0], return_counts=True)[1] for row in rows]
    return max((int(count.max()) for count in counts if count.numel()), default=0)


_RULES: dict[type[Pattern], Callable[[Any], Seen]] = {
    Causal: lambda leaf: _HALF,
    Window: lambda leaf: _window(leaf.left, leaf.right, 1, leaf.dilation),
    BlockWindow: lambda leaf: _window(leaf.left, leaf.right, leaf.block, 1),
    Strided: _strided,
    Fixed: lambda leaf: Seen(leaf.summary / leaf.stride, leaf.stride - leaf.summary),
    GlobalTokens: lambda leaf: Seen(0.0, 2 * _chosen(leaf.which)),
    GlobalBlocks: lambda leaf: Seen(0.0, 2 * leaf.block * (leaf.first + leaf.last)),
    RandomBlocks: lambda leaf: Seen(0.0, leaf.block * leaf.count),
    Prefix: lambda leaf: _counted(leaf.length),
    Lengths: lambda leaf: _counted(leaf.kv_lengths),
    Documents: lambda leaf: Seen(0.0, _longest(leaf)),
    PerHead: lambda parts: max(keys_seen(part) for part in parts.patterns),
    Not: lambda turned: _HALF if isinstance(turned.inner, Causal) else _ALL,
    Both: _both,
    Either: lambda pair: _sum(keys_seen(pair.first), keys_seen(pair.second), _ALL),
}

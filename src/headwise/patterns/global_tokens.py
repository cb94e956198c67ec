"""Tokens that see all and are seen by all."""

from bisect import bisect_left
from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns import intervals
from headwise.patterns.base import Pattern
from headwise.patterns.content import Content, Numbers, as_tensor, is_traced
from headwise.patterns.counts import Wanted, whole_numbers
from headwise.patterns.intervals import FAR, Intervals, normalise
from headwise.patterns.spans import EVERYTHING, Reach, Runs, constant, union, where
from headwise.patterns.tiles import KEY_TILE, QUERY_TILE

# Up to so many tokens are compared one by one, and up to so many ranges make up a row.
_FEW, _MANY = 4, 32

_POSITIONS = Wanted(
    "an int or integers (tokens,)", "give the positions of the tokens, or booleans per sample"
)


@dataclass(frozen=True)
class GlobalTokens(Pattern):
    """Chosen tokens see every key and are seen by every query.

    Args:
        which: Absolute positions of the tokens: an int, a sequence or integers (tokens,), the same
            in every sample. Or booleans (length,) or (batch, length), ``True`` = chosen, where
            samples may choose different numbers of tokens, none at all included; positions past
            ``length`` are not chosen. No token chosen means that no pair may meet.

    Raises:
        PatternError: Numbers that are neither, or a negative position.

    Example:
        >>> from headwise.patterns import Window
        >>> print((GlobalTokens(0) | Window(1, 1)).draw(5, 5))
        ■■■■■
        ■■■··
        ■■■■·
        ■·■■■
        ■··■■
    """

    which: Any

    _alike: ClassVar[tuple[int, ...]] = (1,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "which", _chosen(self.which))

    @property
    @override
    def batch_size(self) -> int | None:
        chosen = self.which
        return (
            chosen.tensor.shape[0]
            if isinstance(chosen, Content) and chosen.tensor.ndim == 2
            else None
        )

    @property
    @override
    def nbytes(self) -> int:
        return self.which.nbytes if isinstance(self.which, Content) else 8 * len(self.which)

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        if self.batch_size is None:
            return self
        chosen = self.which.tensor
        return GlobalTokens(chosen[batch if chosen.shape[0] > 1 else 0])

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        return self._chosen(q_pos) | self._chosen(kv_pos)

    def _chosen(self, position: Positions) -> Allowed:
        """Say which positions are chosen."""
        if isinstance(self.which, tuple):
            if len(self.which) > _FEW:
                return torch.isin(position, torch.tensor(self.which, device=position.device))
            seen = torch.zeros_like(position, dtype=torch.bool)
            for low, high in _ranges(self.which):
                seen = seen | ((position >= low) & (position < high))
            return seen
        chosen: Tensor = self.which.on(position.device)
        if chosen.dtype != torch.bool:
            return (position.unsqueeze(-1) == chosen).any(-1)
        known = chosen.shape[0]
        if not known:
            return torch.zeros_like(position, dtype=torch.bool)
        inside = (position >= 0) & (position < known)
        return chosen[position.clamp(0, known - 1)] & inside

    @override
    def reach(self, runs: Runs) -> Reach:
        columns = constant(self._ranges)
        before = torch.tensor(
            [0, *(high - low for low, high in self._ranges)], device="cpu"
        ).cumsum(0)
        held = self._count(runs.last + 1, before) - self._count(runs.first, before)
        some, every = held > 0, held == runs.last + 1 - runs.first
        return Reach(
            union(columns, where(some, EVERYTHING)), union(columns, where(every, EVERYTHING))
        )

    @override
    def row(self, position: int) -> Intervals | None:
        if len(self._ranges) > _MANY:
            return None
        place = bisect_left(self._ranges, (position + 1, 0)) - 1
        chosen = place >= 0 and position < self._ranges[place][1]
        return intervals.EVERYTHING if chosen else self._ranges

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        before = torch.tensor(
            [0, *(high - low for low, high in self._ranges)], device="cpu"
        ).cumsum(0)
        found = []
        for corner, size in ((query, QUERY_TILE), (key, KEY_TILE)):
            held = self._count(corner + size, before) - self._count(corner, before)
            found.append(torch.where(held > 0, corner, -FAR))
        return torch.stack(found, 1)

    def _count(self, behind: Tensor, before: Tensor) -> Tensor:
        """Count the chosen tokens at positions below ``behind``."""
        low, high = constant(self._ranges)
        if not low.numel():
            return torch.zeros_like(behind)
        place = torch.searchsorted(low[0].contiguous(), behind)
        last = (place - 1).clamp(min=0)
        cut = torch.minimum(behind, high[0, last]) - low[0, last]
        return torch.where(place > 0, before[last] + cut, 0)

    @cached_property
    def _ranges(self) -> Intervals:
        """Where the chosen tokens of a plain pattern stand."""
        if isinstance(self.which, tuple):
            return _ranges(self.which)
        return intervals.runs(self.which.tensor.tolist())


def _ranges(tokens: tuple[int, ...]) -> Intervals:
    return normalise((token, token + 1) for token in tokens)


def _chosen(which: Numbers | Content) -> tuple[int, ...] | Content:
    """Return the positions in rising order; booleans, and numbers being traced, stay a tensor."""
    if isinstance(which, Content):
        return which
    if isinstance(which, Set):
        which = sorted(which)
    source = as_tensor(which, "GlobalTokens: which")
    if source.dtype == torch.bool and source.ndim in (1, 2):
        return Content(source, torch.bool) if source.numel() or source.ndim == 2 else ()
    if source.dtype == torch.bool or source.ndim > 1:
        raise PatternError(
            f"GlobalTokens: which must be positions (tokens,), or booleans (length,) or "
            f"(batch, length), got shape {tuple(source.shape)} {source.dtype}\n"
            "  hint: positions that differ by sample are given as booleans"
        )
    if not source.numel():
        return ()
    if is_traced(source) and isinstance(which, Tensor):
        return Content(source.reshape(-1), torch.int64)
    found = whole_numbers("GlobalTokens: which", which, _POSITIONS)
    given = (found,) if isinstance(found, int) else found
    tokens = tuple(sorted(set(given)))
    if len(tokens) < len(given) and tokens[-1] < 2:
        raise PatternError(
            f"GlobalTokens: 0 and 1 over and over are no positions, got {list(given)[:20]}\n"
            "  hint: a mask with a number for every token is given as booleans, with mask.bool()"
        )
    if tokens[0] < 0:
        raise PatternError(
            f"GlobalTokens: positions must not be negative, got {tokens[0]}\n"
            "  hint: positions count from the first token, 0"
        )
    return tokens

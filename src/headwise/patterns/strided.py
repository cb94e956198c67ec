"""The two patterns of the sparse transformer: strides, and fixed summary columns."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns.base import Pattern
from headwise.patterns.blocks import check_count
from headwise.patterns.intervals import FAR
from headwise.patterns.spans import COARSE, Reach, Runs, between, comb, gathered, union
from headwise.patterns.tiles import tile_gaps


@dataclass(frozen=True)
class Strided(Pattern):
    """A query sees its neighbours closer than ``stride``, and every ``stride``-th token beyond.

    The pair at positions ``i`` and ``j`` may meet where ``|i - j| < stride`` or ``i - j`` is a
    multiple of ``stride``: the two heads of "Generating Long Sequences with Sparse Transformers"
    (Child et al., 2019) joined in one. ``& Causal()`` makes it the paper's, for decoders.

    Args:
        stride: Step, in tokens, at least 1; the paper takes about the square root of the length.

    Raises:
        PatternError: A stride below 1.

    Example:
        >>> from headwise.patterns import Causal
        >>> print((Strided(3) & Causal()).draw(7, 7))
        ■······
        ■■·····
        ■■■····
        ■■■■···
        ·■■■■··
        ··■■■■·
        ■··■■■■
    """

    stride: int

    def __post_init__(self) -> None:
        check_count("Strided", "stride", self.stride, 1, "1 lets every query see every key")

    @property
    @override
    def shift_invariant(self) -> bool:
        return True

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        gap = q_pos - kv_pos
        seen: Allowed = (gap.abs() < self.stride) | (gap % self.stride == 0)
        return seen

    @override
    def reach(self, runs: Runs) -> Reach:
        near, everywhere = self.stride - 1, between(runs.first - FAR, runs.last + FAR)
        band = between(runs.first - near, runs.last + near + 1)
        sure = between(runs.last - near, runs.first + near + 1)
        return Reach(union(band, comb(runs, self.stride, everywhere)), sure)

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        gaps = tile_gaps(query, key, 1 - self.stride, self.stride - 1)
        return torch.cat([gaps, ((key - query) % self.stride).unsqueeze(1)], 1)


@dataclass(frozen=True)
class Fixed(Pattern):
    """A query sees its own stretch of ``stride`` tokens, and the last ones of every stretch.

    The pair at positions ``i`` and ``j`` may meet where ``i // stride == j // stride``, or where
    ``j % stride >= stride - summary``: the fixed pattern of "Generating Long Sequences with Sparse
    Transformers" (Child et al., 2019). ``& Causal()`` makes it the paper's, for decoders.

    Args:
        stride: Length of a stretch, in tokens, at least 1.
        summary: Tokens at the end of every stretch that all queries see, 1 to ``stride``.

    Raises:
        PatternError: A stride below 1, a summary outside its bounds.

    Example:
        >>> from headwise.patterns import Causal
        >>> print((Fixed(3) & Causal()).draw(7, 7))
        ■······
        ■■·····
        ■■■····
        ··■■···
        ··■■■··
        ··■■■■·
        ··■··■■
    """

    stride: int
    summary: int = 1

    def __post_init__(self) -> None:
        check_count("Fixed", "stride", self.stride, 1, "the paper takes 128")
        check_count("Fixed", "summary", self.summary, 1, "the paper takes 8, 16 or 32 of 128")
        if self.summary > self.stride:
            raise PatternError(
                f"Fixed: summary must not exceed stride, got {self.summary} of {self.stride}\n"
                "  hint: the summary is the last part of every stretch"
            )

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        same = q_pos // self.stride == kv_pos // self.stride
        seen: Allowed = same | (kv_pos % self.stride >= self.stride - self.summary)
        return seen

    @override
    def reach(self, runs: Runs) -> Reach:
        stretch, last = runs.first // self.stride, runs.last // self.stride
        own = between(stretch * self.stride, (last + 1) * self.stride)
        alike = torch.where(stretch == last, (last + 1) * self.stride, stretch * self.stride)
        sure = between(stretch * self.stride, alike)
        if self.stride < 2 * COARSE:
            return Reach(between(runs.first - FAR, runs.last + FAR), sure)
        ends = torch.arange(runs.low // self.stride + 1, runs.high // self.stride + 2, device="cpu")
        ends = (ends * self.stride).unsqueeze(0)
        columns = gathered(ends - self.summary, ends)
        return Reach(union(own, columns), union(sure, columns))

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        gaps = tile_gaps(query, key, -self.stride, self.stride)
        return torch.cat(
            [gaps, (query % self.stride).unsqueeze(1), (key % self.stride).unsqueeze(1)], 1
        )

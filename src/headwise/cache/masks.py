"""Patterns of calls over a part of the tokens, over rows of different lengths, over a window."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from headwise._checks import refuse_shapes
from headwise._dims import Allowed, Positions
from headwise.cache.row_counts import RowCounts, as_tensor, each, listed, longest
from headwise.patterns import Either, KeyMask, Lengths, Pattern, Prefix, Window
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import Intervals
from headwise.patterns.spans import Reach, Runs


@dataclass(frozen=True, repr=False)
class AmongAll(Pattern):
    """A pattern over all tokens that were ever appended, asked about some that follow each other.

    Masks spelled out, and patterns that count from the end, are told the place of the whole.

    Args:
        inner: The pattern.
        first: Which of all tokens the first key of the call is.
        kv_len: How many tokens there are in all.
    """

    inner: Pattern
    first: RowCounts
    kv_len: int

    @property
    @override
    def batch_size(self) -> int | None:
        found = self.inner.batch_size
        if isinstance(self.first, tuple) and found in (None, 1):
            return len(self.first)
        return found

    @property
    @override
    def num_heads(self) -> int | None:
        return self.inner.num_heads

    @property
    @override
    def nbytes(self) -> int:
        return self.inner.nbytes

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        first = self.first[batch] if isinstance(self.first, tuple) else self.first
        return AmongAll(self.inner.sample(batch, head), first, self.kv_len)

    @override
    def placed(self, grid: Grid) -> Pattern:
        assert isinstance(self.first, int)
        whole = grid._replace(kv_len=self.kv_len, kv_offset=grid.kv_offset - self.first)
        inner = self.inner.placed(whole)
        if self.first + grid.kv_len <= self.kv_len:
            return inner
        return _Until(inner, whole.kv_offset + self.kv_len - 1)

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        return self.inner._allows(q_pos, kv_pos)

    def __repr__(self) -> str:
        return repr(self.inner)


@dataclass(frozen=True)
class _Until(Pattern):
    """A placed pattern that may be asked about keys behind its last one, which others close."""

    inner: Pattern
    last: int

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        return self.inner._allows(q_pos, kv_pos.clamp(max=self.last))

    @override
    def reach(self, runs: Runs) -> Reach:
        return self.inner.reach(runs)

    @override
    def row(self, position: int) -> Intervals | None:
        return self.inner.row(position)


def real_keys(
    lengths: RowCounts, kv_offset: RowCounts, first: RowCounts, batch: int, kv_len: int
) -> Pattern | None:
    """Return the pattern that closes what stands behind the end of shorter rows, if any is.

    Args:
        lengths: Tokens of each row.
        kv_offset: Position of the first token of all.
        first: Which token the first key of the call is.
        batch: How many rows there are.
        kv_len: Keys of the call.
    """
    if isinstance(lengths, int) and isinstance(first, int):
        return None
    ends = each(lambda offset, length: offset + length, kv_offset, lengths)
    if min(listed(ends, batch)) >= 0:
        return Lengths(ends)
    # Lengths cannot count keys at negative positions.
    places = torch.arange(kv_len, device="cpu") + as_tensor(first, batch).unsqueeze(1)
    return KeyMask(places < as_tensor(lengths, batch).unsqueeze(1))


def window_of(window: int, keep_first: int, kv_len: int, kv_offset: RowCounts) -> Pattern:
    """Let queries see ``window`` keys up to their own, and the first keys of the call always.

    Args:
        window: How many keys a query sees.
        keep_first: How many of the first keys it sees besides.
        kv_len: Keys of the call.
        kv_offset: Position of the first one.
    """
    near = Window(window - 1, None)
    if not keep_first:
        return near
    if isinstance(kv_offset, int) and kv_offset >= 0:
        return Either(near, Prefix(kv_offset + keep_first))
    return Either(near, KeyMask(torch.arange(kv_len, device="cpu") < keep_first))


def columns_of(
    bias: Tensor, first: RowCounts, kv_len: int, lengths: RowCounts, query: Tensor
) -> Tensor:
    """Return the columns of a bias over all tokens that belong to the keys of a call."""
    total = longest(lengths)
    if bias.ndim == 0 or bias.shape[-1] == 1:
        return bias
    if bias.shape[-1] != total:
        raise refuse_shapes(
            "KVCache.attend",
            f"bias must have a column for each of the {total} tokens appended, or 1",
            "those that a window has dropped count, too",
            query=query,
            bias=bias,
        )
    if isinstance(first, int):
        return bias[..., first : first + kv_len]
    batch = len(first)
    places = torch.arange(kv_len, device="cpu") + as_tensor(first, batch).unsqueeze(1)
    places = places.clamp(max=total - 1).to(bias.device)
    whole = bias.reshape((1,) * (4 - bias.ndim) + tuple(bias.shape)).expand(batch, -1, -1, -1)
    wanted = places[:, None, None].expand(-1, *whole.shape[1:3], -1)
    return whole.gather(-1, wanted)

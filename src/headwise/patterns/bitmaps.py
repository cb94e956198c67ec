"""Spells out the tiles in which only some pairs may meet; equal bitmaps are kept once."""

from ctypes import string_at

import torch
from torch import Tensor

from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.tiles import KEY_TILE, QUERY_TILE

# Tiles spelled out at a time: few enough that torch's operations on them stay on one thread.
_CHUNK = 5

EMPTY, FULL = -2, -1


class Bitmaps:
    """The bitmaps of all layouts of a call, numbered in the order in which they came up."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._numbers: dict[bytes, int] = {}

    def stacked(self) -> Tensor:
        """Return all bitmaps, (bitmaps, KEY_TILE) int64."""
        if not self._rows:
            return torch.zeros(0, KEY_TILE, dtype=torch.int64, device="cpu")
        return torch.stack(self._rows)

    def number(self, bits: Tensor) -> int:
        """Return the number of a bitmap, (KEY_TILE,) int64."""
        key = string_at(bits.data_ptr(), bits.nbytes)
        if key not in self._numbers:
            self._numbers[key] = len(self._rows)
            self._rows.append(bits.clone())
        return self._numbers[key]

    def several(self, bits: Tensor) -> Tensor:
        """Return the numbers of some bitmaps, (bitmaps, KEY_TILE) int64, without comparing them."""
        first = len(self._rows)
        self._rows.extend(bits)
        return torch.arange(first, len(self._rows), device="cpu")

    def of(self, plain: Pattern, grid: Grid, query: Tensor, key: Tensor) -> Tensor:
        """Spell out tiles.

        Args:
            plain: A placed pattern.
            grid: Where queries and keys stand.
            query: Index of the first query of each tile, (tiles,) int64.
            key: Index of the first key of each tile, likewise.

        Returns:
            The number of each tile's bitmap, (tiles,) int64; ``EMPTY`` where no pair is allowed,
            ``FULL`` where all are.
        """
        rows, keys = (
            (grid.q_len - query).clamp(max=QUERY_TILE),
            (grid.kv_len - key).clamp(max=KEY_TILE),
        )
        alike = plain.kinds(query + grid.q_offset, key + grid.kv_offset)
        kinds = _numbered(torch.cat([alike, rows.unsqueeze(1), keys.unsqueeze(1)], 1))
        count = int(kinds.max()) + 1 if len(kinds) else 0
        chosen = torch.zeros(count, dtype=torch.int64, device="cpu")
        chosen[kinds] = torch.arange(len(kinds), device="cpu")
        queries, held = _row_masks(rows[chosen]), keys[chosen]
        bits = _spelled(plain, grid, query[chosen], key[chosen]) & queries
        bits = bits.masked_fill(torch.arange(KEY_TILE, device="cpu") >= held.unsqueeze(1), 0)
        full = (bits == queries).sum(1) == held
        numbers = torch.where(full, FULL, EMPTY)
        partial = ~full & (bits != 0).any(1)
        found = [self.number(row) for row in bits[partial]]
        numbers[partial] = torch.tensor(found, dtype=torch.int64, device="cpu")
        return numbers[kinds]


def _row_masks(rows: Tensor) -> Tensor:
    """Return the bits of so many queries, (tiles, 1) int64."""
    return ((1 << rows) - 1).unsqueeze(1)


def _numbered(told: Tensor) -> Tensor:
    """Number rows (tiles, any) int64 so that equal ones have equal numbers, from 0 on."""
    found, count = torch.zeros(len(told), dtype=torch.int64, device="cpu"), 1
    if not len(told):
        return found
    for column in told.unbind(1):
        ranks, width = column - column.min(), int(column.max() - column.min()) + 1
        if count * width >= 1 << 62:
            found, ranks = _ranks(found), _ranks(column)
            count, width = int(found.max()) + 1, int(ranks.max()) + 1
        found, count = found * width + ranks, count * width
    return _ranks(found)


def _ranks(numbers: Tensor) -> Tensor:
    ranks: Tensor = torch.unique(numbers, return_inverse=True)[1]
    return ranks


def _spelled(plain: Pattern, grid: Grid, query: Tensor, key: Tensor) -> Tensor:
    """Return the bitmaps of tiles, (tiles, KEY_TILE) int64; what is past the end does not count."""
    if plain.shift_invariant:
        return _slid(plain, key + grid.kv_offset - query - grid.q_offset)
    corners = torch.split(torch.stack([query, key], 1), _CHUNK)
    found = [_asked(plain, grid, *corner.unbind(1)) for corner in corners]
    return torch.cat(found) if found else query.new_zeros(0, KEY_TILE)


def _asked(plain: Pattern, grid: Grid, first_query: Tensor, first_key: Tensor) -> Tensor:
    query = first_query.view(-1, 1, 1) + torch.arange(QUERY_TILE, device="cpu").view(1, -1, 1)
    key = first_key.view(-1, 1, 1) + torch.arange(KEY_TILE, device="cpu")
    allowed = plain._allows(
        query.clamp(max=grid.q_len - 1) + grid.q_offset,
        key.clamp(max=grid.kv_len - 1) + grid.kv_offset,
    )
    return packed(allowed.expand(len(first_query), QUERY_TILE, KEY_TILE))


def _slid(plain: Pattern, gap: Tensor) -> Tensor:
    """Return the bitmaps of tiles from the distance of their corners, (tiles,), alone.

    Bit ``r`` of key ``j`` speaks of the distance ``gap + j - r``, so words of neighbouring keys are
    the same bits, moved by one. They are put together from words of half their length.
    """
    gaps = gap.unsqueeze(1) + torch.arange(1 - QUERY_TILE, KEY_TILE, device="cpu")
    word = plain._allows(torch.zeros_like(gaps), gaps).to(torch.int64)
    for length in (1, 2, 4, 8):
        word = word[:, length:] | word[:, :-length] << length
    twice = word[:, 16:] | word[:, :-16] << 16
    return word[:, 32:] | twice[:, :KEY_TILE] << 16


def packed(allowed: Tensor) -> Tensor:
    """Return the bitmaps of tiles (tiles, up to QUERY_TILE, KEY_TILE) that are spelled out."""
    powers = torch.arange(allowed.shape[1], device="cpu").unsqueeze(1)
    return (allowed.to(torch.int64) << powers).sum(1)

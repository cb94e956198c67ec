"""Which blocks of a call hold no allowed pair, some, or only allowed ones."""

import torch
from torch import Tensor

from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.spans import Runs, Spans

EMPTY, PARTIAL, FULL = 0, 1, 2

# Pairs of queries and keys spelled out at a time.
_PAIRS = 1 << 19


def block_kinds(plain: Pattern, grid: Grid, block: int) -> Tensor:
    """Tell the blocks of a call apart.

    Args:
        plain: A placed pattern.
        grid: Where queries and keys stand.
        block: Queries, and keys, of a block.

    Returns:
        ``EMPTY``, ``PARTIAL`` or ``FULL``, (query blocks, key blocks) int8. A block that the end
        of the call cuts short is never full.
    """
    rows, columns = -(-grid.q_len // block), -(-grid.kv_len // block)
    kinds = torch.zeros(rows, columns, dtype=torch.int8, device="cpu")
    if not kinds.numel():
        return kinds
    first = torch.arange(rows, device="cpu") * block + grid.q_offset
    last = (first + block - 1).clamp(max=grid.q_offset + grid.q_len - 1)
    runs = Runs(first, last, grid.kv_offset, grid.kv_offset + grid.kv_len)
    reach = plain.reach(runs)
    whole = _flags(reach.sure, grid, block, inside=True, shape=(rows, columns))
    whole[grid.q_len // block :] = False
    kinds[whole] = FULL
    touched = _flags(reach.maybe, grid, block, inside=False, shape=(rows, columns)) & ~whole
    places = touched.nonzero()
    for part in torch.split(places, max(_PAIRS // min(block, grid.q_len * grid.kv_len) ** 2, 1)):
        kinds[part[:, 0], part[:, 1]] = _spelled(plain, grid, block, part)
    return kinds


def _flags(keys: Spans, grid: Grid, block: int, inside: bool, shape: tuple[int, int]) -> Tensor:
    """Return the key blocks that lie in the ranges of each run, or that the ranges touch."""
    low = keys.low.clamp(grid.kv_offset, grid.kv_offset + grid.kv_len) - grid.kv_offset
    high = keys.high.clamp(grid.kv_offset, grid.kv_offset + grid.kv_len) - grid.kv_offset
    used = low < high
    left, right = (-(-low // block), high // block) if inside else (low // block, -(-high // block))
    used = (used & (left < right)).expand(shape[0], -1)
    step = used.to(torch.int32)
    edges = torch.zeros(shape[0], shape[1] + 1, dtype=torch.int32, device="cpu")
    edges.scatter_add_(1, torch.where(used, left, 0), step)
    edges.scatter_add_(1, torch.where(used, right, 0), -step)
    return edges.cumsum(1)[:, :-1] > 0


def _spelled(plain: Pattern, grid: Grid, block: int, part: Tensor) -> Tensor:
    """Return the kinds of the blocks at (row, column), asked pair by pair."""
    # A block may be far larger than the call.
    rows, columns = (
        torch.arange(min(block, length), device="cpu") for length in (grid.q_len, grid.kv_len)
    )
    query = part[:, 0].view(-1, 1, 1) * block + rows.view(1, -1, 1)
    key = part[:, 1].view(-1, 1, 1) * block + columns
    allowed = plain._allows(
        query.clamp(max=grid.q_len - 1) + grid.q_offset,
        key.clamp(max=grid.kv_len - 1) + grid.kv_offset,
    )
    held = (allowed & (query < grid.q_len) & (key < grid.kv_len)).sum((1, 2))
    return torch.where(held == block**2, FULL, (held > 0).to(torch.int8)).to(torch.int8)

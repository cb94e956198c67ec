"""What a picture of a pattern shows: cells, each of a few pairs or of a few tiles."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.patterns import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.lowering import lower
from headwise.patterns.tiles import KEY_TILE, QUERY_TILE

NONE, SOME, ALL = 0, 1, 2

# Cells along a side at most.
CELLS = 256
# Calls with more pairs are drawn by the tiles that kernels work on.
_PAIRS = 4096 * 4096
_AT_ONCE = 2**20

# Says of the queries or query tiles with these indices, (rows, columns) each: where at least one
# pair is allowed, and where all are.
_Spelled = Callable[[Tensor], tuple[Tensor, Tensor]]


class Cells(NamedTuple):
    """The cells of a picture.

    ``shades`` (rows, columns) uint8 are ``NONE``, ``SOME`` or ``ALL``. ``queries`` (rows + 1,) and
    ``keys`` (columns + 1,) are the positions at which cells begin, and the end. ``size`` is how
    many queries and keys a cell holds; the last ones may hold fewer.
    """

    shades: Tensor
    queries: Tensor
    keys: Tensor
    size: tuple[int, int]


def cells_of(plain: Pattern, grid: Grid, most: int = CELLS) -> Cells:
    """Sort the pairs of one sample and head into cells, without a table of all pairs.

    Args:
        plain: What to sort.
        grid: Where its queries and keys stand.
        most: Rows, and columns, of cells at most.
    """
    if grid.q_len * grid.kv_len <= _PAIRS:
        unit, spelled = (1, 1), _by_pairs(plain, grid)
    else:
        unit, spelled = (QUERY_TILE, KEY_TILE), _by_tiles(plain, grid)
    rows, columns = _ceil(grid.q_len, unit[0]), _ceil(grid.kv_len, unit[1])
    group = (_ceil(rows, most), _ceil(columns, most))
    size = (unit[0] * group[0], unit[1] * group[1])
    return Cells(
        _shades(spelled, rows, columns, group),
        _edges(grid.q_offset, grid.q_len, size[0]),
        _edges(grid.kv_offset, grid.kv_len, size[1]),
        size,
    )


def _shades(spelled: _Spelled, rows: int, columns: int, group: tuple[int, int]) -> Tensor:
    at_once = max(_AT_ONCE // (columns * group[0]), 1) * group[0]
    found = []
    for first in range(0, rows, at_once):
        some, every = spelled(torch.arange(first, min(first + at_once, rows), device="cpu"))
        shades = _pooled(some, group).to(torch.uint8)
        found.append(torch.where(_pooled(~every, group), shades, ALL))
    return torch.cat(found)


def _pooled(flags: Tensor, group: tuple[int, int]) -> Tensor:
    """Say for every cell whether one of its flags is set."""
    rows, columns = (_ceil(size, step) for size, step in zip(flags.shape, group, strict=True))
    fill = (0, columns * group[1] - flags.shape[1], 0, rows * group[0] - flags.shape[0])
    filled = torch.nn.functional.pad(flags, fill)
    return filled.view(rows, group[0], columns, group[1]).any(3).any(1)


def _by_pairs(plain: Pattern, grid: Grid) -> _Spelled:
    """Ask the pattern itself."""

    def spelled(rows: Tensor) -> tuple[Tensor, Tensor]:
        seen = plain.spelled((grid,), rows)
        return seen, seen

    return spelled


def _by_tiles(plain: Pattern, grid: Grid) -> _Spelled:
    """Read live and full tiles from what the pattern lowers to."""
    layout, columns = lower(plain, (grid,)), _ceil(grid.kv_len, KEY_TILE)

    def spelled(rows: Tensor) -> tuple[Tensor, Tensor]:
        if layout is None:
            whole = torch.ones(len(rows), columns, dtype=torch.bool, device="cpu")
            return whole, whole
        edges = layout.starts[0, int(rows[0]) : int(rows[-1]) + 2].long()
        first, count, bitmap = layout.entries[edges[0] : edges[-1]].long().unbind(1)
        owner = torch.repeat_interleave(torch.arange(len(rows), device="cpu"), edges.diff())
        live = _covered(owner, first, count, (len(rows), columns))
        full = bitmap < 0
        return live, _covered(owner[full], first[full], count[full], (len(rows), columns))

    return spelled


def _covered(owner: Tensor, first: Tensor, count: Tensor, shape: tuple[int, int]) -> Tensor:
    """Mark runs of tiles, which do not overlap, in a table of rows × columns."""
    steps = torch.zeros(shape[0], shape[1] + 1, dtype=torch.int32, device="cpu")
    one = torch.ones_like(owner, dtype=torch.int32)
    steps.index_put_((owner, first), one, accumulate=True)
    steps.index_put_((owner, first + count), -one, accumulate=True)
    return steps.cumsum(1)[:, :-1] > 0


def _ceil(size: int, step: int) -> int:
    return -(-size // step)


def _edges(offset: int, length: int, size: int) -> Tensor:
    inner = torch.arange(0, length, size, device="cpu")
    return torch.cat([inner, inner.new_tensor([length])]) + offset

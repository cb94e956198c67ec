"""Which blocks of a coarser grid a tile is made of."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headwise.patterns.tiles import KEY_TILE, QUERY_TILE

# Tiles made of more blocks than this are taken to be all different.
_MANY = 64


def cell_kinds(
    query: Tensor,
    key: Tensor,
    block: tuple[int, int],
    cells: Callable[[Tensor, Tensor], Tensor],
    more: Sequence[Tensor] = (),
) -> Tensor:
    """Number tiles by the blocks that they are made of, for ``Pattern.kinds``.

    Args:
        query: Place of the first query of each tile, counted from the first block, (tiles,).
        key: Place of the first key, likewise.
        block: Queries and keys in a block.
        cells: Says what stands in the blocks at rows and columns, which broadcast.
        more: Further numbers (tiles,) that matter.
    """
    rows, columns = (
        torch.arange((size + step - 2) // step + 1, device="cpu")
        for size, step in zip((QUERY_TILE, KEY_TILE), block, strict=True)
    )
    if len(rows) * len(columns) > _MANY:
        return torch.arange(len(query), device="cpu").unsqueeze(1)
    down = (query // block[0]).unsqueeze(1) + rows
    along = (key // block[1]).unsqueeze(1) + columns
    found = cells(down.unsqueeze(2), along.unsqueeze(1)).flatten(1).to(torch.int64)
    beside = torch.stack([query % block[0], key % block[1], *more], 1)
    return torch.cat([beside, found], 1)

"""Reads a tile layout back into the boolean mask that it stands for."""

from itertools import pairwise

import torch
from torch import Tensor

from headwise.patterns.tiles import KEY_TILE, QUERY_TILE, TileLayout


def spelled(layout: TileLayout) -> Tensor:
    """Return (samples or 1, heads or 1, q_len, kv_len); entries may not repeat a key tile."""
    return torch.stack(
        [torch.stack([_plain(layout, number) for number in row]) for row in layout.which.tolist()]
    )


def _plain(layout: TileLayout, number: int) -> Tensor:
    mask = torch.zeros(layout.q_len, layout.kv_len, dtype=torch.bool)
    starts = layout.starts[number].tolist()
    entries = layout.entries.tolist()
    for tile, (begin, end) in enumerate(pairwise(starts)):
        done = 0
        for first, count, bitmap in entries[begin:end]:
            assert first >= done, "key tiles of one query tile must rise"
            assert count == 1 or bitmap < 0, "a bitmap speaks of one tile"
            done = first + count
            _paint(layout, mask, (tile, first, done, bitmap))
    return mask


def _paint(layout: TileLayout, mask: Tensor, entry: tuple[int, int, int, int]) -> None:
    tile, first, end, bitmap = entry
    rows = mask[tile * QUERY_TILE : (tile + 1) * QUERY_TILE]
    part = rows[:, first * KEY_TILE : end * KEY_TILE]
    assert part.numel(), "an entry lies outside the call"
    if bitmap < 0:
        part.fill_(True)
        return
    seen = (layout.bitmaps[bitmap] >> torch.arange(QUERY_TILE).unsqueeze(1) & 1) > 0
    rows_held, keys_held = part.shape
    assert not seen[:, keys_held:].any(), "a bitmap allows keys past the end"
    assert not seen[rows_held:].any(), "a bitmap allows queries past the end"
    part.copy_(seen[:rows_held, :keys_held])

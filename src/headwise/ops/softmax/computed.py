"""How much of the live tiles the native kernels compute."""

import torch
from torch import Tensor

from headwise.patterns.tiles import KEY_TILE, QUERY_TILE, TileLayout


def computed_pairs(layout: TileLayout) -> Tensor:
    """Count the computed pairs of each sample and head, (samples or 1, heads or 1) int64.

    Of a live tile the kernels take all queries, and the keys from the first to the last that one
    of them sees.
    """
    first, count, bitmap = layout.entries.long().unbind(1)
    whole = ((first + count) * KEY_TILE).clamp(max=layout.kv_len) - first * KEY_TILE
    keys = torch.where(bitmap < 0, whole, _spans(layout.bitmaps)[bitmap])
    tile = layout._owners() % (layout.starts.shape[1] - 1)
    queries = (layout.q_len - tile * QUERY_TILE).clamp(max=QUERY_TILE)
    return layout._per_sample(keys * queries)


def _spans(bitmaps: Tensor) -> Tensor:
    """Return how many keys lie from the first to the last live one of each bitmap, and a 0."""
    live = bitmaps != 0
    place = torch.arange(KEY_TILE, device="cpu")
    first = torch.where(live, place, KEY_TILE).amin(1)
    behind = torch.where(live, place + 1, 0).amax(1)
    return torch.nn.functional.pad((behind - first).clamp(min=0), (0, 1))

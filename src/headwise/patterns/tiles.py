"""What a pattern becomes for a kernel: the live tiles of every query tile."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.patterns.intervals import FAR

QUERY_TILE = 48
KEY_TILE = 128


@dataclass(eq=False)
class TileLayout:
    """The live tiles of a call, as the native kernels read them.

    A *plain layout* belongs to one kind of sample and head. Its query tile ``t`` owns the entries
    ``starts[layout, t]`` to ``starts[layout, t + 1]``. An entry is a run of key tiles: the first
    one, how many, and the number of the bitmap that says which pairs are allowed, or -1 where all
    are. Bit ``r`` of ``bitmaps[number, j]`` speaks of query ``r`` and key ``j`` of the tile.
    """

    q_len: int
    kv_len: int
    which: Tensor  # (samples or 1, heads or 1) int32: the plain layout of a sample and head
    starts: Tensor  # (plain layouts, query tiles + 1) int32
    entries: Tensor  # (entries, 3) int32
    bitmaps: Tensor  # (bitmaps, KEY_TILE) int64
    for_kernels: object = None  # the same in the kernels' own form, made when they first ask

    @property
    def nbytes(self) -> int:
        """Memory held by the layout, in bytes."""
        return sum(t.nbytes for t in (self.which, self.starts, self.entries, self.bitmaps))

    def live_tiles(self) -> Tensor:
        """Count the live tiles of each sample and head, (samples or 1, heads or 1) int64."""
        return self._per_sample(self.entries[:, 1].long())

    def live_pairs(self) -> Tensor:
        """Count the allowed pairs of each sample and head, (samples or 1, heads or 1) int64."""
        first, count, bitmap = self.entries.long().unbind(1)
        keys = ((first + count) * KEY_TILE).clamp(max=self.kv_len) - first * KEY_TILE
        tile = self._owners() % (self.starts.shape[1] - 1)
        rows = (self.q_len - tile * QUERY_TILE).clamp(max=QUERY_TILE)
        held = torch.nn.functional.pad(ones(self.bitmaps), (0, 1))
        return self._per_sample(torch.where(bitmap < 0, keys * rows, held[bitmap]))

    def computed_pairs(self) -> Tensor:
        """Count the pairs that the kernels compute, (samples or 1, heads or 1) int64.

        Of a live tile they take all queries, and the keys from the first to the last that one of
        them sees.
        """
        first, count, bitmap = self.entries.long().unbind(1)
        whole = ((first + count) * KEY_TILE).clamp(max=self.kv_len) - first * KEY_TILE
        keys = torch.where(bitmap < 0, whole, _extents(self.bitmaps)[bitmap])
        tile = self._owners() % (self.starts.shape[1] - 1)
        queries = (self.q_len - tile * QUERY_TILE).clamp(max=QUERY_TILE)
        return self._per_sample(keys * queries)

    def seen_keys(self) -> Tensor:
        """Count the keys in tiles that are live for any query, (samples or 1, heads or 1) int64."""
        layouts, edges = self.starts.shape
        tiles = -(-self.kv_len // KEY_TILE)
        first, count, _ = self.entries.long().unbind(1)
        change = torch.zeros(layouts, tiles + 1, dtype=torch.int64, device="cpu")
        owner = self._owners() // (edges - 1)
        change.index_put_((owner, first), torch.ones_like(first), accumulate=True)
        change.index_put_((owner, first + count), -torch.ones_like(first), accumulate=True)
        start = torch.arange(tiles, device="cpu") * KEY_TILE
        size = (self.kv_len - start).clamp(max=KEY_TILE)
        return ((change.cumsum(1)[:, :-1] > 0) * size).sum(1)[self.which.long()]

    def _owners(self) -> Tensor:
        """Return for every entry its query tile, counted through all plain layouts."""
        counts = self.starts.long().diff(dim=1).flatten()
        return torch.repeat_interleave(torch.arange(counts.numel(), device="cpu"), counts)

    def _per_sample(self, amounts: Tensor) -> Tensor:
        layouts, edges = self.starts.shape
        sums = torch.zeros(layouts, dtype=torch.int64, device="cpu")
        sums.index_add_(0, self._owners() // (edges - 1), amounts)
        return sums[self.which.long()]


def ones(bitmaps: Tensor) -> Tensor:
    """Count the set bits of each bitmap, (bitmaps,) int64."""
    sums = torch.zeros(len(bitmaps), dtype=torch.int64, device="cpu")
    for bit in range(QUERY_TILE):
        sums += ((bitmaps >> bit) & 1).sum(1)
    return sums


def _extents(bitmaps: Tensor) -> Tensor:
    """Return how many keys lie from the first to the last live one of each bitmap, and a 0."""
    live, place = bitmaps != 0, torch.arange(KEY_TILE, device="cpu")
    first = torch.where(live, place, KEY_TILE).amin(1)
    behind = torch.where(live, place + 1, 0).amax(1)
    return torch.nn.functional.pad((behind - first).clamp(min=0), (0, 1))


def tile_gaps(query: Tensor, key: Tensor, lowest: int, highest: int) -> Tensor:
    """Return how far the keys of tiles are ahead of their queries, (tiles, 1).

    Tiles count as equally far where no pair has a gap from ``lowest`` to ``highest``, seen from
    the key: all gaps of the tile lie below, or all above.
    """
    below, above = max(lowest, -FAR) - KEY_TILE, min(highest, FAR) + QUERY_TILE
    return (key - query).clamp(below, above).unsqueeze(1)

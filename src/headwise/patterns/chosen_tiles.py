"""Tiles that the caller chooses, for sparsity that depends on the data."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns.base import Pattern
from headwise.patterns.cells import cell_kinds
from headwise.patterns.content import Content, as_tensor, is_traced
from headwise.patterns.counts import Wanted, whole_numbers
from headwise.patterns.grid import Grid
from headwise.patterns.spans import Reach, Runs, flagged, scaled


@dataclass(frozen=True)
class Tiles(Pattern):
    """Tiles of queries × keys chosen for one call: by content, by another library, by hand.

    Args:
        tiles: (q_tiles, kv_tiles), or four dimensions (batch or 1, heads or 1, q_tiles, kv_tiles).
            Booleans, ``True`` = the queries of the tile may attend to its keys; or integers: 0 for
            none, 1 for all, ``n + 2`` for the pairs of ``shapes[n]``. Rows and columns are the
            queries and keys of the call, wherever they stand; the last tiles may be cut short.
        block: Tokens along a tile's side; an int, or (queries, keys).
        shapes: Tiles in which only some pairs may meet, booleans (shapes, queries, keys);
            ``None`` = there are none.
        lengths: Queries and keys of the call that they were chosen for, which is then held to
            them; ``None`` = any that make as many tiles.

    Raises:
        PatternError: Tensors of other shapes or dtypes, numbers that name no shape; when used, a
            call with another number of tiles.

    Example:
        >>> print(Tiles([[True, False], [True, True]], 2).draw(4, 4))
        ■■··
        ■■··
        ■■■■
        ■■■■
    """

    tiles: Any
    block: Any = 128
    shapes: Any = None
    lengths: Any = None
    _first: tuple[int, int] = field(default=(0, 0), init=False, repr=False)

    _alike: ClassVar[tuple[int, ...]] = (2, 1, 3, 1)

    def __post_init__(self) -> None:
        if isinstance(self.tiles, Content):
            return
        object.__setattr__(self, "block", _sides(self.block))
        if self.shapes is not None:
            shapes = _shapes(self.shapes, self.block)
            object.__setattr__(self, "shapes", shapes if shapes.tensor.shape[0] else None)
        object.__setattr__(self, "tiles", _tiles(self.tiles, self.shapes))
        if self.lengths is not None:
            object.__setattr__(self, "lengths", _lengths(self.lengths))

    @property
    @override
    def batch_size(self) -> int | None:
        return self.tiles.tensor.shape[0] if self.tiles.tensor.ndim == 4 else None

    @property
    @override
    def num_heads(self) -> int | None:
        return self.tiles.tensor.shape[1] if self.tiles.tensor.ndim == 4 else None

    @property
    @override
    def nbytes(self) -> int:
        held: int = self.tiles.nbytes + (0 if self.shapes is None else self.shapes.nbytes)
        return held

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        tiles = self.tiles.tensor
        if tiles.ndim == 2:
            return self
        plain = tiles[batch if tiles.shape[0] > 1 else 0, head if tiles.shape[1] > 1 else 0]
        return Tiles(Content(plain, torch.int32), self.block, self.shapes, self.lengths)

    @override
    def placed(self, grid: Grid) -> Pattern:
        held = tuple(self.tiles.tensor.shape)
        wanted = (-(-grid.q_len // self.block[0]), -(-grid.kv_len // self.block[1]))
        if self.lengths not in (None, (grid.q_len, grid.kv_len)):
            raise PatternError(
                f"Tiles: the tiles were chosen for {self.lengths[0]} queries and "
                f"{self.lengths[1]} keys, got {grid.q_len} and {grid.kv_len}\n"
                "  hint: choose tiles, or read the mask, for the queries and keys of the call"
            )
        if held != wanted:
            raise PatternError(
                f"Tiles: {grid.q_len} queries and {grid.kv_len} keys make {wanted[0]} × "
                f"{wanted[1]} tiles of {self.block[0]} × {self.block[1]}, "
                f"got {held[0]} × {held[1]}\n"
                "  hint: choose tiles for the queries and keys of the call, cached keys included"
            )
        found = Tiles(self.tiles, self.block, self.shapes, self.lengths)
        object.__setattr__(found, "_first", (grid.q_offset, grid.kv_offset))
        return found

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        tiles = self.tiles.on(q_pos.device)
        query, key = q_pos - self._first[0], kv_pos - self._first[1]
        kind: Tensor = tiles[query // self.block[0], key // self.block[1]]
        seen = kind == 1
        if self.shapes is None:
            return seen
        shapes: Tensor = self.shapes.on(q_pos.device)
        shape = (kind - 2).clamp(min=0)
        return seen | (kind > 1) & shapes[shape, query % self.block[0], key % self.block[1]]

    @override
    def reach(self, runs: Runs) -> Reach:
        row, column = self._first
        first, last = (runs.first - row) // self.block[0], (runs.last - row) // self.block[0]
        steps = torch.arange(int((last - first).max()) + 1, device="cpu")
        rows = torch.minimum(first.unsqueeze(1) + steps, last.unsqueeze(1))
        some = torch.zeros(len(rows), self.tiles.tensor.shape[1], dtype=torch.bool, device="cpu")
        every = torch.ones_like(some)
        for step in rows.unbind(1):
            some |= self.tiles.tensor[step] > 0
            every &= self.tiles.tensor[step] == 1
        side = self.block[1]
        return Reach(scaled(flagged(some), side, column), scaled(flagged(every), side, column))

    @override
    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        return cell_kinds(query - self._first[0], key - self._first[1], self.block, self._cells)

    def _cells(self, rows: Tensor, columns: Tensor) -> Tensor:
        down, along = self.tiles.tensor.shape
        found: Tensor = self.tiles.tensor[rows.clamp(max=down - 1), columns.clamp(max=along - 1)]
        return found


_LENGTHS = Wanted("two ints of at least 0, or None", "(q_len, kv_len) of the call")
_SIDES = Wanted("an int or two", "(64, 128) has tiles of 64 queries and 128 keys")


def _sides(block: object) -> tuple[int, int]:
    found = whole_numbers("Tiles: block", block, _SIDES)
    sides = (found, found) if isinstance(found, int) else found
    if len(sides) != 2 or min(sides) < 1:
        raise PatternError(
            f"Tiles: block must be an int of at least 1, or two, got {block!r}\n"
            "  hint: (64, 128) has tiles of 64 queries and 128 keys"
        )
    return sides


def _lengths(lengths: object) -> tuple[int, ...]:
    found = whole_numbers("Tiles: lengths", lengths, _LENGTHS)
    if isinstance(found, int) or len(found) != 2 or min(found) < 0:
        raise PatternError(
            f"Tiles: lengths must be {_LENGTHS.what}, got {lengths!r}\n  hint: {_LENGTHS.hint}"
        )
    return found


def _shapes(shapes: object, block: tuple[int, int]) -> Content:
    source = as_tensor(shapes, "Tiles: shapes")
    if source.dtype != torch.bool or tuple(source.shape[1:]) != block or source.ndim != 3:
        raise PatternError(
            f"Tiles: shapes must be booleans (shapes, {block[0]}, {block[1]}), "
            f"got {tuple(source.shape)} {source.dtype}\n"
            "  hint: True = the pair may meet; all shapes are as large as a tile"
        )
    return Content(source, torch.bool)


def _tiles(tiles: object, shapes: Content | None) -> Content:
    source = as_tensor(tiles, "Tiles: tiles")
    if source.is_floating_point() or source.is_complex() or source.ndim not in (2, 4):
        raise PatternError(
            "Tiles: tiles must be booleans or integers (q_tiles, kv_tiles) or "
            f"(batch, heads, q_tiles, kv_tiles), got {tuple(source.shape)} {source.dtype}\n"
            "  hint: scores become tiles by choosing, such as scores >= threshold"
        )
    kinds = 2 + (0 if shapes is None else shapes.tensor.shape[0])
    if not is_traced(source) and source.numel() and source.dtype != torch.bool:
        lowest, highest = int(source.min()), int(source.max())
        if lowest < 0 or highest >= kinds:
            raise PatternError(
                f"Tiles: tiles must be from 0 to {kinds - 1}, got {lowest} to {highest}\n"
                "  hint: 0 = none, 1 = all, n + 2 = shapes[n]"
            )
    return Content(source, torch.int32)

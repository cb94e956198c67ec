"""The leaves that read tensors, as functions of single pairs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from headwise.patterns.chosen_tiles import Tiles
from headwise.patterns.dense import Dense, KeyMask
from headwise.patterns.documents import Documents
from headwise.patterns.global_tokens import GlobalTokens
from headwise.patterns.grid import Grid
from headwise.patterns.intervals import FAR
from headwise.patterns.random_blocks import RandomBlocks
from headwise.patterns.segments import Lengths, Prefix

Rule: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Reader: TypeAlias = Callable[..., Tensor]

# Tokens of a sequence for which a table of flags is too long.
_LONG = 1 << 24


def reader(held: Tensor, device: torch.device) -> Reader:
    """Return what reads one number of ``held``, given an index for every axis.

    An axis of one stands for all indices.
    """
    wide = [axis for axis, size in enumerate(held.shape) if size != 1]
    moved = held.squeeze().to(device)
    if not wide:
        return lambda *index: moved
    return lambda *index: moved[tuple(index[axis] for axis in wide)]


class Place(NamedTuple):
    """Positions of the queries and keys of a call, from sample and index, and where tensors lie."""

    query: Reader
    key: Reader
    device: torch.device

    @staticmethod
    def of(places: Sequence[Grid], device: torch.device) -> "Place":
        """Return the place of a call with one grid for all samples, or one per sample."""
        return Place(
            _counted_from([grid.q_offset for grid in places], device),
            _counted_from([grid.kv_offset for grid in places], device),
            device,
        )


def _counted_from(first: list[int], device: torch.device) -> Reader:
    start = reader(torch.tensor(first, dtype=torch.int64, device="cpu"), device)
    return lambda b, index: index + start(b)


def dense(pattern: Dense, place: Place) -> Rule:
    """Read a mask that is spelled out."""
    mask = pattern.mask.tensor
    spelled = reader(mask if mask.ndim == 4 else mask[None, None], place.device)

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return spelled(b, h, q, k)

    return sees


def key_mask(pattern: KeyMask, place: Place) -> Rule:
    """Read a mask of keys."""
    real = reader(_by_sample(pattern.mask.tensor), place.device)
    return lambda b, h, q, k: real(b, k)


def tiles(pattern: Tiles, place: Place) -> Rule:
    """Read the kind of a pair's tile, and where it has a shape, the pair in it."""
    kinds = pattern.tiles.tensor
    kind = reader(kinds if kinds.ndim == 4 else kinds[None, None], place.device)
    rows, columns = pattern.block
    if pattern.shapes is None or not len(pattern.shapes.tensor):
        return lambda b, h, q, k: kind(b, h, q // rows, k // columns) == 1
    shape = reader(pattern.shapes.tensor, place.device)

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        mine = kind(b, h, q // rows, k // columns)
        inside = shape((mine - 2).clamp(min=0), q % rows, k % columns)
        return (mine == 1) | ((mine > 1) & inside)

    return sees


def documents(pattern: Documents, place: Place) -> Rule:
    """Compare the numbers of two documents."""
    query, key = place.query, place.key
    mine = reader(_by_sample(pattern.ids.tensor), place.device)
    keys = pattern.ids if pattern.kv_ids is None else pattern.kv_ids
    theirs = reader(_by_sample(keys.tensor), place.device)

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        number = mine(b, query(b, q))
        return (number == theirs(b, key(b, k))) & (number >= 0)

    return sees


def global_tokens(pattern: GlobalTokens, place: Place) -> Rule:
    """Say whether either token is chosen."""
    query, key = place.query, place.key
    if isinstance(pattern.which, tuple) and max(pattern.which, default=0) >= _LONG:
        return lambda b, h, q, k: pattern._allows(query(b, q), key(b, k))
    if isinstance(pattern.which, tuple):
        table = torch.zeros(max(pattern.which, default=-1) + 1, dtype=torch.bool, device="cpu")
        table[list(pattern.which)] = True
    else:
        table = pattern.which.tensor
    table = torch.nn.functional.pad(_by_sample(table), (0, 1))
    past = table.shape[1] - 1
    marked = reader(table, place.device)

    def chosen(b: Tensor, position: Tensor) -> Tensor:
        return marked(b, position.clamp(0, past)) & (position >= 0)

    return lambda b, h, q, k: chosen(b, query(b, q)) | chosen(b, key(b, k))


def prefix(pattern: Prefix, place: Place) -> Rule:
    """Compare the position of a key with the length of the prefix."""
    key, count = place.key, _counts(pattern.length, place)
    return lambda b, h, q, k: key(b, k) < count(b)


def lengths(pattern: Lengths, place: Place) -> Rule:
    """Compare the positions of both with the lengths."""
    query, key, keys = place.query, place.key, _counts(pattern.kv_lengths, place)
    if pattern.q_lengths is None:
        return lambda b, h, q, k: key(b, k) < keys(b)
    queries = _counts(pattern.q_lengths, place)
    return lambda b, h, q, k: (key(b, k) < keys(b)) & (query(b, q) < queries(b))


def random_blocks(placed: RandomBlocks, place: Place) -> Rule:
    """Compare the block of a key with every block that was drawn for the query's."""
    query, key, block, count = place.query, place.key, placed.block, placed.count
    drawn = reader(torch.nn.functional.pad(placed._drawn, (0, 1, 0, 1), value=-1), place.device)
    last, end = len(placed._drawn) - 1, placed._placed_end

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        mine, theirs = query(b, q), key(b, k)
        row, column = (mine // block).clamp(0, last), theirs // block
        seen = torch.zeros_like(column, dtype=torch.bool)
        for n in range(count):
            seen = seen | (drawn(row, n) == column)
        inside = (mine >= 0) & (mine < end) & (theirs >= 0) & (theirs < end)
        return seen & inside

    return sees


def _counts(counts: int | tuple[int, ...], place: Place) -> Reader:
    each = (counts,) if isinstance(counts, int) else counts
    held = torch.tensor([min(count, FAR) for count in each], dtype=torch.int64, device="cpu")
    return reader(held, place.device)


def _by_sample(numbers: Tensor) -> Tensor:
    return numbers if numbers.ndim == 2 else numbers.unsqueeze(0)

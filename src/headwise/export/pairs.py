"""Which pairs a pattern allows, in operations of torch that hold for lengths still open.

A graph is written once for all lengths, so nothing here may look at a number in a tensor, and what
speaks of one length cannot stand in a graph for others.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import SymInt, Tensor
from torch.nn.functional import pad

from headwise._dims import Allowed
from headwise.errors import PatternError
from headwise.patterns import (
    Both,
    Dense,
    Documents,
    Either,
    GlobalBlocks,
    GlobalTokens,
    KeyMask,
    Lengths,
    Not,
    Pattern,
    PerHead,
    Prefix,
    RandomBlocks,
    Tiles,
)
from headwise.patterns.content import Content
from headwise.patterns.counts import Settled


class Place(NamedTuple):
    """Sizes of a call and the positions of its tokens; sizes may be open.

    Attributes:
        batch: Samples.
        q_len: Queries.
        kv_len: Keys.
        query: Positions of the queries, (batch or 1, 1, q_len, 1).
        key: Positions of the keys, (batch or 1, 1, 1, kv_len).
        end: The position behind the last key, or ``None`` where samples differ.
    """

    batch: int
    q_len: int
    kv_len: int
    query: Tensor
    key: Tensor
    end: int | None

    @staticmethod
    def of(
        batch: int,
        lengths: tuple[int, int],
        q_offsets: Sequence[int],
        kv_offsets: Sequence[int],
        device: torch.device,
    ) -> "Place":
        """Return the place of a call with one offset for all samples, or one per sample."""
        query, key = (
            torch.stack([torch.arange(length, device=device) + first for first in offsets])
            for length, offsets in zip(lengths, (q_offsets, kv_offsets), strict=True)
        )
        end = kv_offsets[0] + lengths[1] if len(kv_offsets) == 1 else None
        return Place(batch, *lengths, query[:, None, :, None], key[:, None, None, :], end)


def allowed(pattern: Pattern, place: Place) -> Allowed:
    """Spell a pattern out for a call whose lengths may be open.

    Returns:
        Booleans (batch or 1, heads or 1, q_len or 1, kv_len or 1).

    Raises:
        PatternError: The pattern holds for one length only, and the call leaves it open.
    """
    match pattern:
        case Both(first=a, second=b):
            return allowed(a, place) & allowed(b, place)
        case Either(first=a, second=b):
            return allowed(a, place) | allowed(b, place)
        case Not(inner=a):
            return ~allowed(a, place)
        case PerHead(patterns=parts):
            each = [allowed(part, place) for part in parts]
            alike: Sequence[Tensor] = torch.broadcast_tensors(*each)  # type: ignore[no-untyped-call]
            return torch.cat(list(alike), 1)
    spelled = _LEAVES.get(type(pattern))
    return pattern._allows(place.query, place.key) if spelled is None else spelled(pattern, place)


def _key_mask(pattern: KeyMask, place: Place) -> Allowed:
    mask = _with_samples(pattern.mask.tensor)
    _refuse_fixed("KeyMask", "keys", mask.shape[1], place.kv_len)
    # A view, unlike an index, cannot be had of a mask of another length.
    return mask.reshape(_samples(mask, place), 1, 1, place.kv_len)


def _dense(pattern: Dense, place: Place) -> Allowed:
    mask: Tensor = pattern.mask.tensor
    mask = mask if mask.ndim == 4 else mask[None, None]
    sizes: list[int] = [_samples(mask, place), mask.shape[1]]
    for what, size, length in (
        ("queries", mask.shape[2], place.q_len),
        ("keys", mask.shape[3], place.kv_len),
    ):
        if not _is_one(size):
            _refuse_fixed("Dense", what, size, length)
        sizes.append(1 if _is_one(size) else length)
    return mask.reshape(sizes)


def _tiles(pattern: Tiles, place: Place) -> Allowed:
    tiles: Tensor = pattern.tiles.tensor
    rows, columns = pattern.block
    if pattern.lengths is not None:
        for what, held, length in zip(
            ("queries", "keys"), pattern.lengths, (place.q_len, place.kv_len), strict=True
        ):
            _refuse_fixed("Tiles", what, held, length)
    tiles = tiles if tiles.ndim == 4 else tiles[None, None]
    for what, count, length in (
        ("queries", tiles.shape[2], place.q_len),
        ("keys", tiles.shape[3], place.kv_len),
    ):
        _refuse_fixed("Tiles", what, count, length)
    down, along = _blocks(place.q_len, rows), _blocks(place.kv_len, columns)
    tiles = tiles.reshape(_samples(tiles, place), tiles.shape[1], down, along)
    device = tiles.device
    row, column = (
        torch.arange(place.q_len, device=device),
        torch.arange(place.kv_len, device=device),
    )
    kind = tiles[:, :, row // rows][..., column // columns]
    if pattern.shapes is None:
        return kind == 1
    inside: Tensor = pattern.shapes.tensor[
        (kind - 2).clamp(min=0).long(), row.unsqueeze(1) % rows, column % columns
    ]
    return (kind == 1) | ((kind > 1) & inside)


def _prefix(pattern: Prefix, place: Place) -> Allowed:
    return place.key < _counts(pattern.length)


def _lengths(pattern: Lengths, place: Place) -> Allowed:
    seen = place.key < _counts(pattern.kv_lengths)
    if pattern.q_lengths is None:
        return seen
    return seen & (place.query < _counts(pattern.q_lengths))


def _documents(pattern: Documents, place: Place) -> Allowed:
    mine = _at(_with_samples(pattern.ids.tensor), place.query)
    keys = pattern.ids if pattern.kv_ids is None else pattern.kv_ids
    return (mine == _at(_with_samples(keys.tensor), place.key)) & (mine >= 0)


def _global_tokens(pattern: GlobalTokens, place: Place) -> Allowed:
    which = pattern.which
    if not isinstance(which, Content) or which.tensor.dtype != torch.bool:
        return pattern._allows(place.query, place.key)
    flags = pad(_with_samples(which.tensor), (0, 1))
    past = flags.shape[1] - 1

    def chosen(position: Tensor) -> Tensor:
        inside = (position >= 0) & (position < past)
        return _at(flags, torch.where(inside, position, past))

    return chosen(place.query) | chosen(place.key)


def _random_blocks(pattern: RandomBlocks, place: Place) -> Allowed:
    end = place.end if pattern.length is None else pattern.length
    if end is None or isinstance(end, SymInt):
        raise PatternError(
            "RandomBlocks: what is drawn follows from the length, which this graph leaves open\n"
            f"  pattern  {pattern!r}\n"
            "  hint: give the pattern length=, the most tokens there will be, or export at one "
            "length"
        )
    # Decompositions may bring no tensors of their own, but an operator of ONNX holds numbers.
    if not pattern.count:
        return torch.zeros_like(place.key, dtype=torch.bool)
    drawn = [*pattern._until(end)._rows_drawn(), [-1] * pattern.count]
    numbers = [number for row in drawn for number in row]
    table = torch.onnx.ops.symbolic(
        "Constant", (), {"value_ints": numbers}, dtype=torch.int64, shape=(len(numbers),)
    ).view(len(drawn), pattern.count)
    last = len(drawn) - 1
    row = torch.where(place.query < 0, last, place.query // pattern.block).clamp(max=last)
    column = place.key // pattern.block
    seen = torch.zeros_like(column, dtype=torch.bool) & (row < 0)
    for number in range(pattern.count):
        seen = seen | (table[:, number][row] == column)
    return seen & (place.query < end) & (place.key >= 0) & (place.key < end)


def _global_blocks(pattern: GlobalBlocks, place: Place) -> Allowed:
    end = place.end if pattern.length is None else pattern.length
    if end is None:
        raise PatternError(
            "GlobalBlocks: the end of the sequence differs by sample here\n"
            f"  pattern  {pattern!r}\n"
            "  hint: give the pattern length=, the tokens of a sequence"
        )
    blocks = _blocks(end, pattern.block)
    behind, last = pattern.first * pattern.block, (blocks - pattern.last) * pattern.block

    def chosen(position: Tensor) -> Tensor:
        inside = (position >= 0) & (position < end)
        return ((position < behind) | (position >= last)) & inside

    return chosen(place.query) | chosen(place.key)


_LEAVES: dict[type[Pattern], Callable[[Any, Place], Allowed]] = {
    KeyMask: _key_mask,
    Dense: _dense,
    Tiles: _tiles,
    Prefix: _prefix,
    Lengths: _lengths,
    Documents: _documents,
    GlobalTokens: _global_tokens,
    RandomBlocks: _random_blocks,
    GlobalBlocks: _global_blocks,
}


def _refuse_fixed(kind: str, what: str, held: int, length: int) -> None:
    """Refuse a tensor of one length in a graph that leaves the length open."""
    if isinstance(length, SymInt) and not isinstance(held, SymInt):
        raise PatternError(
            f"{kind}: a tensor made for one number of {what} stands in a graph that leaves it "
            f"open, {held} for {length}\n"
            "  hint: build it from an input of the module, or export at one length"
        )


def _blocks(length: int, block: int) -> int:
    """Return how many blocks a length makes; ONNX rounds the quotient of a negative one up."""
    return (length + block - 1) // block


def _is_one(size: int) -> bool:
    return not isinstance(size, SymInt) and size == 1


def _with_samples(numbers: Tensor) -> Tensor:
    return numbers if numbers.ndim == 2 else numbers.unsqueeze(0)


def _samples(held: Tensor, place: Place) -> int:
    return 1 if _is_one(held.shape[0]) else place.batch


def _counts(counts: Settled | Content) -> int | Tensor:
    """Return counts in a form that positions of all samples can be compared with."""
    if isinstance(counts, Content):
        return counts.tensor.view(-1, 1, 1, 1)
    if isinstance(counts, tuple):
        return torch.tensor(counts).view(-1, 1, 1, 1)
    return counts


def _at(numbers: Tensor, position: Tensor) -> Tensor:
    """Read the number at each position, where those past the end have none and fail."""
    # An index from behind would count from the end.
    position = torch.where(position < 0, numbers.shape[1], position)
    samples, many = position.shape[0], numbers.shape[0]
    if _is_one(samples):
        return numbers[:, position.flatten()].view(many, *position.shape[1:])
    rows = torch.arange(1 if _is_one(many) else samples, device=numbers.device)
    return numbers[rows.view(-1, 1, 1, 1), position]

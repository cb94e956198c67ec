"""The meaning of every pattern, pair by pair, in plain Python."""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.patterns import (
    BlockWindow,
    Both,
    Causal,
    Dense,
    Documents,
    Either,
    Fixed,
    Full,
    GlobalBlocks,
    GlobalTokens,
    KeyMask,
    Lengths,
    Not,
    Pattern,
    PerHead,
    Prefix,
    RandomBlocks,
    Strided,
    Tiles,
    Window,
)
from tests.support.settings import Setting


class Pair(NamedTuple):
    """A query and a key of a call: their indices, their positions, the end of the keys."""

    sample: int
    head: int
    row: int
    column: int
    query: int
    key: int
    end: int


def spelled(pattern: Pattern, setting: Setting) -> Tensor:
    """Ask every pair of a call on its own; (batch, heads, q_len, kv_len)."""
    shape = (setting.batch, setting.heads, setting.q_len, setting.kv_len)
    answer = torch.zeros(shape, dtype=torch.bool)
    for b, h, row, column in product(*(range(size) for size in shape)):
        query, key = setting.positions(b)
        end = key + setting.kv_len
        pair = Pair(b, h, row, column, query + row, key + column, end)
        answer[b, h, row, column] = _sees(pattern, pair)
    return answer


def _sees(pattern: Pattern, pair: Pair) -> bool:
    return _RULES[type(pattern)](pattern, pair)


def _window(p: Window, pair: Pair) -> bool:
    steps, between = divmod(pair.key - pair.query, p.dilation)
    near = (p.left is None or -steps <= p.left) and (p.right is None or steps <= p.right)
    return near and not between


def _strided(p: Strided, pair: Pair) -> bool:
    return abs(pair.query - pair.key) < p.stride or (pair.query - pair.key) % p.stride == 0


def _fixed(p: Fixed, pair: Pair) -> bool:
    same = pair.query // p.stride == pair.key // p.stride
    return same or pair.key % p.stride in range(p.stride)[-p.summary :]


def _global_tokens(p: GlobalTokens, pair: Pair) -> bool:
    tokens = p.which
    if not isinstance(tokens, tuple):
        tokens = [n for n, flag in enumerate(_row(tokens.tensor, pair.sample)) if flag]
    return pair.query in tokens or pair.key in tokens


def _block_window(p: BlockWindow, pair: Pair) -> bool:
    apart = pair.key // p.block - pair.query // p.block
    return (p.left is None or apart >= -p.left) and (p.right is None or apart <= p.right)


def _global_blocks(p: GlobalBlocks, pair: Pair) -> bool:
    end = pair.end if p.length is None else p.length
    blocks = range(-(-end // p.block))
    chosen = [*blocks[: p.first], *blocks[len(blocks) - min(p.last, len(blocks)) :]]
    return any(0 <= n < end and n // p.block in chosen for n in (pair.query, pair.key))


def _random_blocks(p: RandomBlocks, pair: Pair) -> bool:
    """Read the table that was drawn; what may be drawn is tested elsewhere."""
    end = pair.end if p.length is None else p.length
    if not (0 <= pair.query < end and 0 <= pair.key < end):
        return False
    return pair.key // p.block in p._until(end)._drawn[pair.query // p.block].tolist()


def _lengths(p: Lengths, pair: Pair) -> bool:
    real = p.q_lengths is None or pair.query < _of(p.q_lengths, pair.sample)
    return real and pair.key < _of(p.kv_lengths, pair.sample)


def _documents(p: Documents, pair: Pair) -> bool:
    mine = _row(p.ids.tensor, pair.sample)[pair.query]
    return mine >= 0 and mine == _row((p.kv_ids or p.ids).tensor, pair.sample)[pair.key]


def _key_mask(p: KeyMask, pair: Pair) -> bool:
    return bool(_row(p.mask.tensor, pair.sample)[pair.column])


def _dense(p: Dense, pair: Pair) -> bool:
    wanted, mask = pair[:4], p.mask.tensor
    places = zip(wanted[4 - mask.ndim :], mask.shape, strict=True)
    return bool(mask[tuple(n % size for n, size in places)])


def _tiles(p: Tiles, pair: Pair) -> bool:
    tiles, (rows, columns) = p.tiles.tensor, p.block
    if tiles.ndim == 4:
        tiles = tiles[pair.sample % len(tiles), pair.head % tiles.shape[1]]
    kind = int(tiles[pair.row // rows, pair.column // columns])
    if kind < 2:
        return kind == 1
    return bool(p.shapes.tensor[kind - 2, pair.row % rows, pair.column % columns])


def _of(counts: Any, sample: int) -> int:
    return counts if isinstance(counts, int) else int(counts[sample % len(counts)])


def _row(numbers: Tensor, sample: int) -> list[int]:
    chosen = numbers if numbers.ndim == 1 else numbers[sample % len(numbers)]
    return [int(number) for number in chosen]


_RULES: dict[type[Pattern], Callable[[Any, Pair], bool]] = {
    Both: lambda p, pair: _sees(p.first, pair) and _sees(p.second, pair),
    Either: lambda p, pair: _sees(p.first, pair) or _sees(p.second, pair),
    Not: lambda p, pair: not _sees(p.inner, pair),
    PerHead: lambda p, pair: _sees(p.patterns[pair.head % len(p.patterns)], pair),
    Full: lambda p, pair: True,
    Causal: lambda p, pair: pair.key <= pair.query,
    Window: _window,
    Strided: _strided,
    Fixed: _fixed,
    GlobalTokens: _global_tokens,
    BlockWindow: _block_window,
    GlobalBlocks: _global_blocks,
    RandomBlocks: _random_blocks,
    Prefix: lambda p, pair: pair.key < _of(p.length, pair.sample),
    Lengths: _lengths,
    Documents: _documents,
    KeyMask: _key_mask,
    Dense: _dense,
    Tiles: _tiles,
}

"""Generators of every kind of leaf, each by itself, that fits the sizes of a call."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from hypothesis import strategies as st
from torch import Tensor

from headwise.patterns import (
    BlockWindow,
    Causal,
    Dense,
    Documents,
    Fixed,
    Full,
    GlobalBlocks,
    GlobalTokens,
    KeyMask,
    Lengths,
    Pattern,
    Prefix,
    RandomBlocks,
    Strided,
    Tiles,
    Window,
)
from tests.support.settings import Setting

Draw: TypeAlias = Callable[[st.DrawFn, Setting], Pattern]

# Steps and blocks below, at and above the sides of a tile, such that leave ranges apart, and such
# that come back to the same phase of a query tile at another phase of a key tile.
STEPS = st.sampled_from([1, 2, 3, 5, 7, 16, 47, 48, 64, 96, 100, 128, 144, 192, 240, 256, 300, 336])
SEEDS = st.integers(0, 1000)


def flags(seed: int, *shape: int) -> Tensor:
    """Return booleans of which six of ten are set."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def _flags(draw: st.DrawFn, *shape: int) -> Tensor:
    return flags(draw(SEEDS), *shape)


def _size(setting: Setting) -> int:
    """Return a number of tokens a little past the longer side of a call."""
    return max(setting.q_len, setting.kv_len) + 3


def _count(draw: st.DrawFn, setting: Setting) -> int:
    return draw(st.integers(0, _size(setting)))


def _counts(draw: st.DrawFn, setting: Setting) -> int | tuple[int, ...] | Tensor:
    """Draw one number of tokens, or one per sample in either form."""
    if draw(st.booleans()):
        return _count(draw, setting)
    each = tuple(_count(draw, setting) for _ in range(setting.batch))
    return torch.tensor(each) if draw(st.booleans()) else each


def _window(draw: st.DrawFn, setting: Setting) -> Pattern:
    edge = st.none() | st.integers(0, _size(setting))
    return Window(draw(edge), draw(edge), draw(st.integers(1, 3) | STEPS))


def _fixed(draw: st.DrawFn, setting: Setting) -> Pattern:
    stride = draw(STEPS)
    return Fixed(stride, draw(st.integers(1, stride)))


def _global_tokens(draw: st.DrawFn, setting: Setting) -> Pattern:
    tokens = draw(st.lists(st.just(0) | st.integers(0, _size(setting)), max_size=4, unique=True))
    one = tokens[:1]
    return GlobalTokens(draw(st.sampled_from([tokens, tuple(tokens), *one, _integers(tokens)])))


def _integers(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def _global_flags(draw: st.DrawFn, setting: Setting) -> Pattern:
    known = _count(draw, setting)
    shape = draw(st.sampled_from([(known,), (setting.batch, known), (1, known)]))
    chosen = _flags(draw, *shape) & _flags(draw, *shape)
    if draw(st.booleans()):
        chosen[draw(st.integers(0, len(chosen))) :] = False
    return GlobalTokens(chosen)


def _block_window(draw: st.DrawFn, setting: Setting) -> Pattern:
    edge = st.none() | st.integers(0, 3)
    return BlockWindow(draw(STEPS), draw(edge), draw(edge))


def _global_blocks(draw: st.DrawFn, setting: Setting) -> Pattern:
    length = draw(st.none() | st.integers(0, _size(setting)))
    return GlobalBlocks(draw(STEPS), draw(st.integers(0, 2)), draw(st.integers(0, 2)), length)


def _random_blocks(draw: st.DrawFn, setting: Setting) -> Pattern:
    return RandomBlocks(
        draw(STEPS),
        draw(st.integers(0, 3)),
        draw(SEEDS),
        draw(st.sampled_from([0, 0, 1, 3, 5])),
        draw(st.integers(0, 2)),
        draw(st.none() | st.integers(0, _size(setting))),
    )


def _tiles(draw: st.DrawFn, setting: Setting) -> Pattern:
    sides = (draw(STEPS), draw(STEPS))
    block = draw(st.sampled_from([sides, sides[0]]))
    rows, columns = sides if block == sides else (sides[0], sides[0])
    along = (-(-setting.q_len // rows), -(-setting.kv_len // columns))
    samples = st.sampled_from([1, setting.batch])
    heads = st.sampled_from([1, setting.heads])
    shape = along if draw(st.booleans()) else (draw(samples), draw(heads), *along)
    if draw(st.booleans()):
        return Tiles(_flags(draw, *shape), block)
    shapes = draw(st.integers(1, 2))
    source = torch.Generator().manual_seed(draw(SEEDS))
    kinds = torch.randint(0, shapes + 2, shape, generator=source)
    return Tiles(kinds, block, _flags(draw, shapes, rows, columns))


def _key_mask(draw: st.DrawFn, setting: Setting) -> Pattern:
    shape = draw(st.sampled_from([(), (1,), (setting.batch,)]))
    return KeyMask(_flags(draw, *shape, setting.kv_len))


def _dense(draw: st.DrawFn, setting: Setting) -> Pattern:
    s = setting
    sizes = (s.batch, s.heads, s.q_len, s.kv_len)
    own = tuple(draw(st.sampled_from([1, size])) for size in sizes)
    return Dense(_flags(draw, *draw(st.sampled_from([own, own[2:], sizes[2:]]))))


def _documents(draw: st.DrawFn, setting: Setting) -> Pattern:
    places = [setting.positions(sample) for sample in range(setting.batch)]
    known = max(max(q + setting.q_len, k + setting.kv_len) for q, k in places)
    source = torch.Generator().manual_seed(draw(SEEDS))
    ids = torch.randint(-1, 3, (2, setting.batch, known), generator=source)
    packed = torch.arange(known) // draw(st.integers(1, known))
    given = [(ids[0], None), (ids[0, 0], None), (ids[0], ids[1]), (packed, None)]
    return Documents(*draw(st.sampled_from(given)))


KINDS: dict[str, Draw] = {
    "Full": lambda draw, setting: Full(),
    "Causal": lambda draw, setting: Causal(),
    "Window": _window,
    "Strided": lambda draw, setting: Strided(draw(STEPS)),
    "Fixed": _fixed,
    "GlobalTokens": _global_tokens,
    "GlobalTokens by flags": _global_flags,
    "BlockWindow": _block_window,
    "GlobalBlocks": _global_blocks,
    "RandomBlocks": _random_blocks,
    "Tiles": _tiles,
    "Prefix": lambda draw, setting: Prefix(_counts(draw, setting)),
    "Lengths": lambda draw, setting: Lengths(_counts(draw, setting)),
    "Lengths of both": lambda draw, setting: Lengths(
        _counts(draw, setting), _counts(draw, setting)
    ),
    "KeyMask": _key_mask,
    "Dense": _dense,
    "Documents": _documents,
}


def fits(kind: str, setting: Setting) -> bool:
    """Say whether a kind of leaf can speak of the positions of a call."""
    places = (setting.positions(sample) for sample in range(setting.batch))
    return kind != "Documents" or min(min(place) for place in places) >= 0


@st.composite
def leaves_of(draw: st.DrawFn, kind: str, setting: Setting) -> Pattern:
    """Draw a leaf of one kind."""
    return KINDS[kind](draw, setting)

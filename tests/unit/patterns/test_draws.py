"""Sparse patterns drawn by hand, next to what they draw of themselves."""

import dataclasses

import pytest

from headwise.patterns import (
    BlockWindow,
    Causal,
    Documents,
    Fixed,
    GlobalBlocks,
    GlobalTokens,
    Pattern,
    PerHead,
    RandomBlocks,
    Strided,
    Tiles,
    Window,
    bigbird,
    longformer,
    spelling,
)
from tests.unit.patterns.test_leaves import EACH

STRIDED = "■■■■··■\n■■■■■··\n■■■■■■·\n■■■■■■■\n·■■■■■■\n··■■■■■\n■··■■■■"
FIXED = "■■■··■·\n■■■··■·\n■■■··■·\n··■■■■·\n··■■■■·\n··■■■■·\n··■··■■"
SHAPES = [[[True, False], [True, True]], [[False, True], [False, False]]]
DRAWN: list[tuple[Pattern, int, int, str]] = [
    (Strided(3), 7, 7, STRIDED),
    (Strided(3) & Causal(), 4, 7, "■■■■···\n·■■■■··\n··■■■■·\n■··■■■■"),
    (Strided(1), 2, 3, "■■■\n■■■"),
    (Strided(99), 2, 3, "■■■\n■■■"),
    (Fixed(3), 7, 7, FIXED),
    (Fixed(4, 2), 2, 8, "··■■■■■■\n··■■■■■■"),
    (Fixed(3, 3), 1, 4, "■■■■"),
    (Fixed(9) & Causal(), 3, 3, "■··\n■■·\n■■■"),
    (GlobalTokens(1), 4, 4, "·■··\n■■■■\n·■··\n·■··"),
    (GlobalTokens([3, 0, 3]), 4, 4, "■■■■\n■··■\n■··■\n■■■■"),
    (GlobalTokens([]), 2, 2, "··\n··"),
    (GlobalTokens(5), 2, 2, "··\n··"),
    (GlobalTokens([True, False, False]), 2, 4, "■···\n■···"),
    (
        GlobalTokens([[True, False, False], [False, False, False], [False, True, True]]),
        3,
        3,
        "■■■\n■··\n■··\n\n···\n···\n···\n\n·■■\n■■■\n■■■",
    ),
    (BlockWindow(2, 1, 0), 5, 5, "■■···\n■■···\n■■■■·\n■■■■·\n··■■■"),
    (BlockWindow(2, None, 0), 3, 5, "■■■■·\n■■■■·\n■■■■■"),
    (BlockWindow(2, 0, None), 5, 5, "■■■■■\n■■■■■\n··■■■\n··■■■\n····■"),
    (BlockWindow(2, None, None), 1, 3, "■■■"),
    (GlobalBlocks(2, 1, 1), 5, 5, "■■■■■\n■■■■■\n■■··■\n■■··■\n■■■■■"),
    (GlobalBlocks(2, 0, 1, length=4), 5, 5, "··■■·\n··■■·\n■■■■■\n■■■■■\n··■■·"),
    (GlobalBlocks(2, 0, 0), 2, 2, "··\n··"),
    (GlobalBlocks(2, 9, 9), 3, 3, "■■■\n■■■\n■■■"),
    (Tiles([[True, False], [False, True]], (2, 3)), 3, 5, "■■■··\n■■■··\n···■■"),
    (Tiles([[2, 1], [0, 3]], 2, SHAPES), 4, 4, "■·■■\n■■■■\n···■\n····"),
    (
        Tiles([[[[True, False]], [[False, True]]]], (9, 2)),
        2,
        3,
        "■■·\n■■·\n\n··■\n··■",
    ),
    (PerHead([Causal(), Window(0, 0)]), 2, 2, "■·\n■■\n\n■·\n·■"),
    (
        PerHead([GlobalTokens([[True], [False]]), Causal()]),
        2,
        2,
        "■■\n■·\n\n■·\n■■\n\n··\n··\n\n■·\n■■",
    ),
    (longformer(2, [0]), 4, 4, "■■■■\n■■■·\n■■■■\n■·■■"),
    (longformer(3), 4, 4, "■■··\n■■■·\n·■■■\n··■■"),
    (longformer(1) & Documents([0, 0]), 2, 2, "■·\n·■"),
    (
        longformer(2, [[True, False, False], [False, False, False]]),
        3,
        3,
        "■■■\n■■■\n■■■\n\n■■·\n■■■\n·■■",
    ),
    (RandomBlocks(2, 0, seed=1), 2, 2, "··\n··"),
    (RandomBlocks(2, 9, seed=1), 3, 3, "■■■\n■■■\n■■■"),
    (RandomBlocks(1, 9, seed=1, window_blocks=3), 4, 4, "··■■\n···■\n■···\n■■··"),
    (RandomBlocks(1, 9, seed=1, global_blocks=1), 4, 4, "····\n·■■·\n·■■·\n····"),
]


def _name(part: object) -> str | None:
    return repr(part)[:40] if isinstance(part, Pattern) else None


@pytest.mark.parametrize(("pattern", "q_len", "kv_len", "picture"), DRAWN, ids=_name)
def test_drawn_by_hand(pattern: Pattern, q_len: int, kv_len: int, picture: str) -> None:
    assert pattern.draw(q_len, kv_len) == picture


def test_each_is_frozen_and_unlike_the_others() -> None:
    for number, (pattern, *_) in enumerate(DRAWN):
        assert all(pattern != other for other, *_ in DRAWN[number + 1 :])
        for field in dataclasses.fields(pattern):  # type: ignore[arg-type]
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(pattern, field.name, 3)


def test_the_parts_of_bigbird() -> None:
    """Six blocks of two tokens; the middle rows draw from what the others leave."""
    blocks = ["■■■■■■", "■■■··■", "■■■■·■", "■·■■■■", "■··■■■", "■■■■■■"]
    picture = "\n".join("".join(2 * mark for mark in row) for row in blocks for _ in range(2))
    assert bigbird(2, random_blocks=0).draw(12, 12) == picture
    one = bigbird(2, random_blocks=1, seed=3)
    rows = [row.count("■") // 2 for row in one.draw(12, 12).splitlines()[::2]]
    assert rows == [6, 5, 6, 6, 5, 6]


def test_every_kind_is_drawn_by_hand_in_under_twenty_columns() -> None:
    pictures = {id(pattern): picture for pattern, *_, picture in DRAWN}
    assert all(len(line) < 20 for text in pictures.values() for line in text.splitlines())
    kinds = {type(pattern) for pattern in (*EACH, *(pattern for pattern, *_ in DRAWN))}
    assert kinds >= {*spelling._LEAVES, PerHead}

"""The whole text of every refusal of strides, blocks, chosen tokens and tiles, and of heads."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from headwise import PatternError
from headwise.patterns import (
    BlockWindow,
    Causal,
    Dense,
    Fixed,
    GlobalBlocks,
    GlobalTokens,
    KeyMask,
    Lengths,
    PerHead,
    RandomBlocks,
    Strided,
    Tiles,
    bigbird,
    longformer,
)

pytestmark = pytest.mark.usefixtures("plain_calls")

FAR = 2**60
TOKENS = "GlobalTokens: which must be positions (tokens,), or booleans (length,) or (batch, length)"
TOKENS_HINT = "positions that differ by sample are given as booleans"
INTEGERS = "GlobalTokens: which must be an int or integers (tokens,), got"
INTEGERS_HINT = "give the positions of the tokens, or booleans per sample"
TILES = (
    "Tiles: tiles must be booleans or integers (q_tiles, kv_tiles) or "
    "(batch, heads, q_tiles, kv_tiles), got"
)
TILES_HINT = "scores become tiles by choosing, such as scores >= threshold"
RANGE_HINT = "0 = none, 1 = all, n + 2 = shapes[n]"
BLOCK_HINT = "(64, 128) has tiles of 64 queries and 128 keys"
SHAPES = "Tiles: shapes must be booleans (shapes, 2, 2), got"
SHAPES_HINT = "True = the pair may meet; all shapes are as large as a tile"
HEADS = "PerHead: patterns"
HEADS_HINT = "PerHead([Causal(), Window(4, 4)]) gives head 0 one pattern and head 1 another"
FITS_HINT = "choose tiles for the queries and keys of the call, cached keys included"
ODD_HINT = "a window holds the query's own block and as many on both sides"
SEED_HINT = "another number draws other blocks"
FLAGS = torch.ones(2, 3, dtype=torch.bool)
ANY: Any = "3"

CASES: list[tuple[Callable[[], object], str, str]] = [
    (
        lambda: Strided(0),
        "Strided: stride must be an int of at least 1, got 0",
        "1 lets every query see every key",
    ),
    (
        lambda: Strided(ANY),
        "Strided: stride must be an int of at least 1, got '3'",
        "1 lets every query see every key",
    ),
    (
        lambda: Strided(True),
        "Strided: stride must be an int of at least 1, got True",
        "1 lets every query see every key",
    ),
    (
        lambda: Strided(FAR + 1),
        f"Strided: stride must be at most {FAR}, got {FAR + 1}",
        "1 lets every query see every key",
    ),
    (
        lambda: Fixed(0),
        "Fixed: stride must be an int of at least 1, got 0",
        "the paper takes 128",
    ),
    (
        lambda: Fixed(4, 0),
        "Fixed: summary must be an int of at least 1, got 0",
        "the paper takes 8, 16 or 32 of 128",
    ),
    (
        lambda: Fixed(4, 5),
        "Fixed: summary must not exceed stride, got 5 of 4",
        "the summary is the last part of every stretch",
    ),
    (
        lambda: GlobalTokens([2, -1]),
        "GlobalTokens: positions must not be negative, got -1",
        "positions count from the first token, 0",
    ),
    (
        lambda: GlobalTokens([[1, 2], [3, 4]]),
        f"{TOKENS}, got shape (2, 2) torch.int64",
        TOKENS_HINT,
    ),
    (
        lambda: GlobalTokens(torch.ones(1, 2, 3) > 0),
        f"{TOKENS}, got shape (1, 2, 3) torch.bool",
        TOKENS_HINT,
    ),
    (lambda: GlobalTokens(True), f"{TOKENS}, got shape () torch.bool", TOKENS_HINT),
    (
        lambda: GlobalTokens(torch.tensor([0.5])),
        f"{INTEGERS} shape (1,) torch.float32",
        INTEGERS_HINT,
    ),
    (lambda: GlobalTokens([1.5, 2]), f"{INTEGERS} [1.5, 2]", INTEGERS_HINT),
    (
        lambda: BlockWindow(0, 1, 1),
        "BlockWindow: block must be an int of at least 1, got 0",
        "64 tokens are usual",
    ),
    (
        lambda: BlockWindow(2, -1, None),
        "BlockWindow: left must be an int of at least 0, got -1",
        "None has no bound",
    ),
    (
        lambda: BlockWindow(2, None, 1.0),  # type: ignore[arg-type]
        "BlockWindow: right must be an int of at least 0, got 1.0",
        "None has no bound",
    ),
    (
        lambda: GlobalBlocks(2, -1, 0),
        "GlobalBlocks: first must be an int of at least 0, got -1",
        "1 is usual",
    ),
    (
        lambda: GlobalBlocks(2, 0, -1),
        "GlobalBlocks: last must be an int of at least 0, got -1",
        "1 is usual",
    ),
    (
        lambda: GlobalBlocks(2, 0, 1, -3),
        "GlobalBlocks: length must be an int of at least 0, got -3",
        "None takes the call's",
    ),
    (
        lambda: RandomBlocks(2, -1, 0),
        "RandomBlocks: count must be an int of at least 0, got -1",
        "3 is usual",
    ),
    (
        lambda: RandomBlocks(2, 1, -1),
        "RandomBlocks: seed must be an int of at least 0, got -1",
        SEED_HINT,
    ),
    (
        lambda: RandomBlocks(2, 1, 2**63),
        f"RandomBlocks: seed must be at most {2**63 - 1}, got {2**63}",
        SEED_HINT,
    ),
    (
        lambda: RandomBlocks(2, 1, 0, window_blocks=4),
        "RandomBlocks: window_blocks must be odd, or 0, got 4",
        ODD_HINT,
    ),
    (
        lambda: bigbird(2, window_blocks=0),
        "bigbird: window_blocks must be an int of at least 1, got 0",
        "3 is usual, the paper's own",
    ),
    (
        lambda: longformer(0),
        "longformer: window must be an int of at least 1, got 0",
        "the window counts the neighbours on both sides together",
    ),
    (lambda: Tiles(FLAGS.float()), f"{TILES} (2, 3) torch.float32", TILES_HINT),
    (lambda: Tiles(FLAGS[None]), f"{TILES} (1, 2, 3) torch.bool", TILES_HINT),
    (
        lambda: Tiles([[0, 2]], 2),
        "Tiles: tiles must be from 0 to 1, got 0 to 2",
        RANGE_HINT,
    ),
    (
        lambda: Tiles([[-1, 2]], 2, torch.ones(1, 2, 2) > 0),
        "Tiles: tiles must be from 0 to 2, got -1 to 2",
        RANGE_HINT,
    ),
    (
        lambda: Tiles(FLAGS, 0),
        "Tiles: block must be an int of at least 1, or two, got 0",
        BLOCK_HINT,
    ),
    (
        lambda: Tiles(FLAGS, (2, 2, 2)),
        "Tiles: block must be an int of at least 1, or two, got (2, 2, 2)",
        BLOCK_HINT,
    ),
    (
        lambda: Tiles(FLAGS, 2, torch.ones(1, 2, 2)),
        f"{SHAPES} (1, 2, 2) torch.float32",
        SHAPES_HINT,
    ),
    (lambda: Tiles(FLAGS, 2, torch.ones(2, 2) > 0), f"{SHAPES} (2, 2) torch.bool", SHAPES_HINT),
    (
        lambda: Tiles(FLAGS, (4, 8)).dense(5, 25),
        "Tiles: 5 queries and 25 keys make 2 × 4 tiles of 4 × 8, got 2 × 3",
        FITS_HINT,
    ),
    (
        lambda: PerHead([]),
        f"{HEADS} must hold a pattern for every query head, got none",
        HEADS_HINT,
    ),
    (
        lambda: PerHead([Causal(), 3]),
        f"{HEADS} must hold a pattern for every query head, got 3",
        HEADS_HINT,
    ),
    (
        lambda: PerHead(Causal()),
        f"{HEADS} must be a sequence of patterns, got Causal()",
        HEADS_HINT,
    ),
    (
        lambda: PerHead([PerHead([Causal(), Strided(2)]), Causal()]),
        f"{HEADS} must be the same for all heads, each by itself, got heads [2, None]",
        HEADS_HINT,
    ),
    (
        lambda: PerHead([Lengths([1, 2]), Lengths([1, 2, 3]), KeyMask([[True]])]),
        f"{HEADS} must tell apart the same samples, got [2, 3]",
        HEADS_HINT,
    ),
    (
        lambda: PerHead([Causal()] * 2) & Dense(torch.ones(1, 3, 1, 1)),
        "patterns joined by & or | must agree on the number of heads, got 2 and 3",
        "build both for the same heads, or let one of them hold for all",
    ),
    (
        lambda: GlobalTokens(FLAGS) | Lengths([1, 2, 3]),
        "patterns joined by & or | must agree on the number of samples, got 2 and 3",
        "build both for the same samples, or let one of them hold for all",
    ),
]


@pytest.mark.parametrize(("wrong", "problem", "hint"), CASES, ids=[c[1][:60] for c in CASES])
def test_refusal(wrong: Callable[[], object], problem: str, hint: str) -> None:
    with pytest.raises(PatternError) as caught:
        wrong()
    assert str(caught.value) == f"{problem}\n  hint: {hint}"

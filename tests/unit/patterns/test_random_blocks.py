"""What may be drawn at random: counts, what is left out, and that the same is drawn everywhere."""

import pytest
import torch

from headwise.patterns import Pattern, RandomBlocks

FEW = [
    (blocks, count, window, ends)
    for blocks in (1, 2, 3, 5, 12)
    for count in (0, 1, 3, 9)
    for window in (0, 1, 3, 5)
    for ends in (0, 1, 2)
]
PINNED = [{3, 4}, {4, 9}, {1, 10}, {8, 10}]


def drawn(pattern: Pattern, blocks: int, block: int = 1) -> list[set[int]]:
    """Return the blocks that every block of queries sees."""
    length = blocks * block
    rows = pattern.dense(length, length).view(blocks, block, blocks, block)
    assert torch.equal(rows.any(3).any(1), rows.all(3).all(1)), "blocks are seen as a whole"
    return [set(row.nonzero().flatten().tolist()) for row in rows[:, 0, :, 0]]


@pytest.mark.parametrize("block", [1, 3])
def test_as_many_as_asked_and_never_what_others_hold(block: int) -> None:
    for blocks, count, window, ends in FEW:
        for seed in range(4):
            found = drawn(RandomBlocks(block, count, seed, window, ends), blocks, block)
            for row, chosen in enumerate(found):
                globals_ = {*range(ends), *range(blocks - ends, blocks)}
                near = {n for n in range(blocks) if window and abs(n - row) <= window // 2}
                free = set(range(blocks)) - globals_ - near
                wanted = 0 if row in globals_ else min(count, len(free))
                assert chosen <= free
                assert len(chosen) == wanted


def test_every_block_has_the_same_chance() -> None:
    seeds = 400
    times = torch.zeros(10, 10)
    for seed in range(seeds):
        for row, chosen in enumerate(drawn(RandomBlocks(1, 2, seed, 3, 1), 10)):
            times[row, list(chosen)] += 1
    for row in range(1, 9):
        free = [n for n in range(1, 9) if abs(n - row) > 1]
        chance = 2 / len(free)
        spread = (seeds * chance * (1 - chance)) ** 0.5
        assert (times[row, free] - seeds * chance).abs().max() < 4.5 * spread


def test_rows_and_seeds_draw_apart() -> None:
    one, other = (drawn(RandomBlocks(1, 2, seed), 40) for seed in (0, 1))
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 4
    assert len({frozenset(row) for row in one}) > 36


def test_the_same_is_drawn_on_every_machine() -> None:
    """Written down: a model trained with these blocks is used with them."""
    assert drawn(RandomBlocks(1, 2, 7, 3, 1), 12)[1:5] == PINNED


def test_what_is_drawn_is_up_to_the_length() -> None:
    """A short last block is one of those drawn from; a length of its own keeps all as it is."""
    pattern = RandomBlocks(4, 1, 0)
    seen = torch.stack([RandomBlocks(4, 1, seed).dense(10, 10) for seed in range(40)]).any(0)
    assert seen.all()
    assert not torch.equal(pattern.dense(40, 40)[:10, :10], pattern.dense(10, 10))
    fixed = RandomBlocks(4, 1, 0, length=40)
    whole = fixed.dense(40, 40)
    for length in (1, 10, 39):
        assert torch.equal(fixed.dense(length, length), whole[:length, :length])
    for token in range(40):
        assert torch.equal(fixed.dense(1, token + 1), whole[token : token + 1, : token + 1])


def test_nothing_is_drawn_past_the_length() -> None:
    alone = RandomBlocks(4, 2, 0, length=18).dense(30, 30)
    assert not alone[18:].any()
    assert not alone[:, 18:].any()

"""K11, B90: of two shifts of cached positions only the last one counted, or some rows had none.

llama.cpp#3825, #3835, #14742. A cache here never turns what it holds: keys keep their absolute
positions, a window says with its offset where they stand, and padding in front of a row is taken
off once. So a shift is what the positions of new tokens are, and two of them are their sum.
"""

import pytest
import torch

import headwise as hw
from headwise.positions import Rotary
from tests.support.budget import largest_error


@pytest.mark.parametrize("interleaved", [False, True])
def test_turning_twice_is_turning_by_the_sum(interleaved: bool) -> None:
    """Two streams of four keys, by -1 and then by -2."""
    turn = Rotary(8, interleaved=interleaved)
    raw = torch.randn(2, 3, 4, 8, dtype=torch.float64)
    stored = turn(raw, 5)
    for shift in (-1, -2):
        pairs = [turn(one, shift) for one in stored.split(1, 2)]  # every key by the same
        stored = torch.cat(pairs, 2)
    assert largest_error(stored, turn(raw, 2)) < 1e-12


@pytest.mark.parametrize("dtype", [None, torch.int8], ids=str)
def test_a_window_that_moves_turns_nothing(dtype: torch.dtype | None) -> None:
    """Keys that are held have the bits that they were stored with, however often it moved."""
    turn = Rotary(8)
    raw = torch.randn(2, 3, 60, 8)
    cache = hw.KVCache(window=4, rollback=0, dtype=dtype)
    whole = hw.KVCache(dtype=dtype)
    whole.append(turn(raw, 0), raw)
    for at in range(60):
        one = raw[:, :, at : at + 1]
        held = cache.append(turn(one, at), one)
        last = held.key.shape[2]
        assert torch.equal(held.key, whole.stored().key[:, :, at + 1 - last : at + 1])


def test_streams_shifted_by_their_own_padding() -> None:
    """The scores of a step do not depend on where a stream begins."""
    layer = hw.MultiHeadAttention(16, 2, pattern=hw.Causal(), positions=Rotary(8)).double()
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    cache, shifted = hw.KVCache(), hw.KVCache()
    with torch.no_grad():
        for at in range(6):
            step = x[:, at : at + 1]
            found = layer(step, cache=shifted, q_offset=torch.tensor([at - 1, at - 3]))
            assert largest_error(found, layer(step, cache=cache)) < 1e-12

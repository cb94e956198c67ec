"""A mask read from FlexAttention for one length was used for another with as many tiles."""

import pytest
import torch

import headwise as hw

CAUSAL = hw.patterns.from_mask_mod(lambda b, h, q, k: q >= k, None, None, 200, 200)


def test_another_length_is_refused() -> None:
    with pytest.raises(hw.PatternError) as refusal:
        CAUSAL.dense(250, 250)
    assert str(refusal.value) == (
        "Tiles: the tiles were chosen for 200 queries and 200 keys, got 250 and 250\n"
        "  hint: choose tiles, or read the mask, for the queries and keys of the call"
    )
    x = torch.randn(1, 1, 250, 8)
    with pytest.raises(hw.PatternError, match="were chosen for 200 queries"):
        hw.attend(x, x, x, CAUSAL)


def test_blocks_larger_than_the_call() -> None:
    wide = hw.patterns.from_mask_mod(lambda b, h, q, k: q >= k, None, None, 5, 7, block=1 << 17)
    assert torch.equal(wide.dense(5, 7), hw.Causal().dense(5, 7, 0))
    mask = hw.Causal().block_mask(5, 7, block_size=1 << 17)
    assert mask.kv_num_blocks.tolist() == [[[1]]]


def test_lengths_of_no_call() -> None:
    for ask in (hw.Causal().dense, hw.Causal().block_mask, hw.Causal().mask_mod):
        with pytest.raises(hw.PatternError, match="must not be negative, got -5 and 5"):
            ask(-5, 5)


def test_a_mask_of_numbers_is_not_taken_for_positions() -> None:
    for mask in ([1, 0, 0], torch.tensor([1, 0, 0, 0])):
        with pytest.raises(hw.PatternError, match=r"are no positions.*\n.*mask\.bool\(\)"):
            hw.GlobalTokens(mask)

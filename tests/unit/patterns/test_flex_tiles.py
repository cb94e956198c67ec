"""Mask functions and block masks of FlexAttention as patterns."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import (
    BlockMask,
    create_block_mask,
    create_mask,
    flex_attention,
)

import headwise as hw
from headwise.patterns import Tiles, from_block_mask, from_mask_mod
from tests.support.budget import assert_within_budget
from tests.support.oracle import attention
from tests.support.shapes import Sizes, inputs
from tests.support.strategies import patterns, settings_of_calls

LENGTHS = st.sampled_from([1, 5, 16, 31, 33, 50])


def near(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (k <= q) & (q - k < 40)


def by_sample_and_head(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (k <= q + b) & ((q - k) % (h + 1) == 0)


@given(data=st.data())
def test_there_and_back(data: st.DataObject) -> None:
    s = data.draw(settings_of_calls(LENGTHS))
    pattern = data.draw(patterns(s))
    wanted = pattern.dense(s.q_len, s.kv_len, **s.offsets).expand(s.batch, s.heads, -1, -1)
    allows = pattern.mask_mod(s.q_len, s.kv_len, **s.offsets)
    sizes = (s.batch, s.heads, s.q_len, s.kv_len)
    read = from_mask_mod(allows, *sizes, block=16)
    assert torch.equal(read.dense(s.q_len, s.kv_len), wanted)
    block_mask = pattern.block_mask(s.q_len, s.kv_len, s.batch, s.heads, **s.offsets, block_size=16)
    again = from_block_mask(block_mask).dense(s.q_len, s.kv_len)
    assert torch.equal(again.expand(sizes), wanted)


@pytest.mark.parametrize("block", [16, (16, 32), 128])
@pytest.mark.parametrize("full", [True, False])
def test_a_block_mask_of_torch(block: Any, full: bool) -> None:
    sizes = (2, 3, 50, 70)
    theirs = create_block_mask(
        by_sample_and_head, *sizes, device="cpu", BLOCK_SIZE=block, separate_full_blocks=full
    )
    mask = create_mask(by_sample_and_head, *sizes, device="cpu")
    assert torch.equal(from_block_mask(theirs).dense(50, 70), mask)


def test_samples_and_heads_that_are_alike_are_kept_once() -> None:
    pattern = from_mask_mod(near, None, None, 50, 50, 16)
    assert (pattern.batch_size, pattern.num_heads) == (None, None)
    assert (
        from_block_mask(create_block_mask(near, None, None, 50, 50, device="cpu")).num_heads is None
    )
    heads = from_mask_mod(by_sample_and_head, None, 3, 50, 50, 16)
    assert (heads.batch_size, heads.num_heads) == (1, 3)


def test_equal_shapes_are_kept_once() -> None:
    pattern = from_mask_mod(near, None, None, 160, 160, 16)
    assert pattern.tiles.tensor.shape == (10, 10)
    # One on the diagonal, two at the far edge of the window.
    assert pattern.shapes.tensor.shape == (3, 16, 16)
    assert pattern == from_block_mask(
        create_block_mask(near, None, None, 160, 160, device="cpu", BLOCK_SIZE=16)
    )


def test_a_mask_that_was_cut_to_shorter_lengths() -> None:
    long = create_block_mask(near, None, None, 96, 96, device="cpu", BLOCK_SIZE=16)
    cut = long._adjust(41, 50)
    wanted = create_mask(near, None, None, 41, 50, device="cpu")[0, 0]
    assert torch.equal(from_block_mask(cut).dense(41, 50), wanted)


def test_the_lengths_of_a_mask_are_those_of_the_call() -> None:
    """K3-B24: what was made for other lengths is refused and never cut in silence."""
    pattern = from_mask_mod(near, None, None, 10, 20, 4)
    hw.attend(*inputs(Sizes(q_len=10, kv_len=20)), pattern)
    for keys in (13, 17):
        with pytest.raises(hw.PatternError, match=f"10 queries and 20 keys, got 10 and {keys}"):
            hw.attend(*inputs(Sizes(q_len=10, kv_len=keys)), pattern)


def test_attention_equals_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", 1
    )
    given_ = inputs(Sizes(2, 3, 1, 50, 50, 16, 16))
    block_mask = create_block_mask(by_sample_and_head, 2, 3, 50, 50, device="cpu")
    output = hw.attend(*given_, from_block_mask(block_mask))
    visible = create_mask(by_sample_and_head, 2, 3, 50, 50, device="cpu")
    exact = attention(*given_, visible).output
    plain = attention(*given_, visible, dtype=torch.float32).output
    assert_within_budget(output, exact=exact, plain=plain, label="ours")
    theirs = flex_attention(*given_, block_mask=block_mask)
    assert isinstance(theirs, Tensor)
    assert_within_budget(theirs, exact=exact, plain=plain, label="theirs")


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_ask(lengths: tuple[int, int]) -> None:
    pattern = from_mask_mod(near, None, None, *lengths)
    assert pattern.dense(*lengths).shape == lengths
    assert from_block_mask(hw.Causal().block_mask(*lengths)).dense(*lengths).shape == lengths


def test_tiles_of_which_none_has_a_shape() -> None:
    pattern = Tiles([[1, 0], [0, 1]], 2, torch.zeros(0, 2, 2, dtype=torch.bool))
    wanted = Tiles([[True, False], [False, True]], 2).dense(4, 4)
    mask = create_mask(pattern.mask_mod(4, 4), None, None, 4, 4, device="cpu")
    assert torch.equal(mask[0, 0], wanted)
    assert torch.equal(pattern.dense(4, 4), wanted)


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize("wrong", [3, Tiles([[True]]), lambda score, b, h, q, k: score])
def test_what_is_no_mask_function(wrong: Any) -> None:
    with pytest.raises(hw.PatternError) as caught:
        from_mask_mod(wrong, None, None, 3, 3)
    assert str(caught.value) == (
        f"from_mask_mod: mask_mod must be a function of (b, h, q_idx, kv_idx), got {wrong!r}\n"
        "  hint: a BlockMask goes into from_block_mask, a boolean tensor into Dense"
    )


@pytest.mark.usefixtures("plain_calls")
def test_a_function_that_answers_with_numbers() -> None:
    with pytest.raises(hw.PatternError) as caught:
        from_mask_mod(lambda b, h, q, k: q - k, None, None, 3, 3)
    assert str(caught.value) == (
        "from_mask_mod: mask_mod must answer with booleans, got torch.int64\n"
        "  hint: True = the pair may meet; numbers to add to the scores are a bias"
    )


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((0, None, 3, 3), "batch must be an int of at least 1, got 0"),
        ((None, True, 3, 3), "heads must be an int of at least 1, got True"),
        ((None, None, -1, 3), "q_len must be an int of at least 0, got -1"),
        ((None, None, 3, 2.0), "kv_len must be an int of at least 0, got 2.0"),
        ((None, None, 3, 3, 0), "block must be an int of at least 1, got 0"),
    ],
)
def test_sizes_of_nonsense(sizes: Any, told: str) -> None:
    with pytest.raises(hw.PatternError) as caught:
        from_mask_mod(near, *sizes)
    assert str(caught.value).startswith(f"from_mask_mod: {told}\n  hint: ")


@pytest.mark.usefixtures("plain_calls")
def test_what_is_no_block_mask() -> None:
    wrong: Any = torch.ones(3, 3, dtype=torch.bool)
    with pytest.raises(hw.PatternError) as caught:
        from_block_mask(wrong)
    assert str(caught.value) == (
        "from_block_mask: takes a BlockMask, got Tensor\n"
        "  hint: a function of (b, h, q_idx, kv_idx) goes into from_mask_mod, "
        "a boolean tensor into Dense"
    )


@pytest.mark.usefixtures("plain_calls")
def test_a_mask_whose_blocks_do_not_fit_its_lengths() -> None:
    whole = create_block_mask(near, None, None, 37, 53, device="cpu", BLOCK_SIZE=16)
    with pytest.raises(hw.PatternError) as caught:
        from_block_mask(whole[:, :, :1])
    assert str(caught.value) == (
        "from_block_mask: 37 queries and 53 keys make 3 × 4 blocks of 16 × 16, got 1 × 4\n"
        "  hint: make the mask anew for the lengths of the call, with create_block_mask"
    )


def test_a_mask_that_lost_its_function() -> None:
    whole = create_block_mask(near, 2, None, 37, 53, device="cpu", BLOCK_SIZE=16)
    part: BlockMask = whole[:1]
    with pytest.raises(RuntimeError, match="sliced BlockMask"):
        from_block_mask(part)
    part.mask_mod = near
    assert torch.equal(
        from_block_mask(part).dense(37, 53), from_block_mask(whole).dense(37, 53)[0, 0]
    )

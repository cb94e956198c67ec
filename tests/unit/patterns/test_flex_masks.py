"""Patterns as mask functions and block masks of FlexAttention."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

import headwise as hw
from headwise.patterns import Pattern
from tests.support.settings import Setting
from tests.support.strategies import EVERY_KIND, kind_of, patterns, settings_for, settings_of_calls

LENGTHS = st.sampled_from([1, 5, 16, 31, 33, 50])
on_every_kind = pytest.mark.parametrize("kind", EVERY_KIND)


def wanted(pattern: Pattern, setting: Setting) -> Tensor:
    mask = pattern.dense(setting.q_len, setting.kv_len, **setting.offsets)
    return mask.expand(setting.batch, setting.heads, -1, -1)


def assert_equal_masks(ours: BlockMask, theirs: BlockMask) -> None:
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    assert ours.seq_lengths == theirs.seq_lengths
    for name in BlockMask._TENSOR_ATTRS:
        mine, other = getattr(ours, name, None), getattr(theirs, name, None)
        if mine is None or other is None:
            assert mine is other, name
            continue
        assert mine.dtype == other.dtype, name
        assert torch.equal(mine, other), name


def check(pattern: Pattern, setting: Setting) -> None:
    """Compare with ``dense``, and the blocks with those that torch finds by asking every pair."""
    s = setting
    allows = pattern.mask_mod(s.q_len, s.kv_len, **s.offsets)
    sizes = (s.batch, s.heads, s.q_len, s.kv_len)
    assert torch.equal(create_mask(allows, *sizes, device="cpu"), wanted(pattern, s))
    block_mask = pattern.block_mask(s.q_len, s.kv_len, s.batch, s.heads, **s.offsets, block_size=16)
    theirs = create_block_mask(allows, *sizes, device="cpu", BLOCK_SIZE=16)
    assert_equal_masks(block_mask, theirs)


@on_every_kind
@given(data=st.data())
def test_every_kind_means_the_same_there(kind: str, data: st.DataObject) -> None:
    setting = data.draw(settings_for(kind, LENGTHS))
    check(data.draw(kind_of(kind, setting)), setting)


@given(data=st.data())
def test_combinations_mean_the_same_there(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls(LENGTHS))
    check(data.draw(patterns(setting)), setting)


@given(data=st.data())
def test_a_whole_grid_may_be_asked_at_once(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    pattern = data.draw(patterns(setting))
    axes = [torch.arange(size) for size in wanted(pattern, setting).shape]
    places = torch.meshgrid(*axes, indexing="ij")
    allows = pattern.mask_mod(setting.q_len, setting.kv_len, **setting.offsets)
    answer = allows(*places)
    assert torch.equal(answer.expand_as(places[0]), wanted(pattern, setting))


def test_rules_of_positions_need_no_lengths() -> None:
    both = hw.Causal() & hw.Window(3, 0) | hw.patterns.PerHead([hw.Prefix(2), hw.Prefix((1, 2))])
    mask = create_mask(both.mask_mod(), 2, 2, 7, 7, device="cpu")
    assert torch.equal(mask, both.dense(7, 7))
    later = create_mask(hw.Causal().mask_mod(q_offset=4), None, None, 2, 7, device="cpu")
    assert torch.equal(later[0, 0], hw.Causal().dense(2, 7, q_offset=4))


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (hw.KeyMask([True, False]), "KeyMask"),
        (hw.Causal() & ~hw.Dense([[True, False]]), "Dense"),
        (hw.patterns.PerHead([hw.Causal(), hw.patterns.bigbird(4)]), "GlobalBlocks"),
        (hw.Documents([0, 0, 1]), "Documents"),
    ],
)
def test_rules_of_one_call_need_its_lengths(pattern: Pattern, name: str) -> None:
    with pytest.raises(hw.PatternError) as caught:
        pattern.mask_mod()
    assert str(caught.value) == (
        f"mask_mod: {name} must know both lengths of the call, got q_len=None and kv_len=None\n"
        "  hint: pattern.mask_mod(q_len, kv_len)"
    )


@pytest.mark.usefixtures("plain_calls")
def test_one_length_alone_is_refused() -> None:
    with pytest.raises(hw.PatternError) as caught:
        hw.Causal().mask_mod(q_len=0)
    assert str(caught.value) == (
        "mask_mod must know both lengths of the call, got q_len=0 and kv_len=None\n"
        "  hint: pattern.mask_mod(q_len, kv_len)"
    )


@pytest.mark.parametrize("make", [Pattern.mask_mod, Pattern.block_mask])
@pytest.mark.parametrize(
    "pattern",
    [
        hw.KeyMask([True, False]),
        hw.Causal() | hw.Dense(torch.ones(3, 4)),
        hw.Full() | hw.Dense(torch.ones(3, 4)),
        hw.patterns.Tiles([[True]], 2),
        hw.Documents([0, 0, 1]),
    ],
)
def test_a_pattern_for_another_call_is_refused(make: Any, pattern: Pattern) -> None:
    with pytest.raises(hw.PatternError):
        make(pattern, 5, 5)


def test_sizes_of_a_block_mask() -> None:
    three = hw.Lengths((1, 2, 3)) & hw.patterns.PerHead([hw.Causal(), hw.Full()])
    assert three.block_mask(5, 5).shape == (3, 2, 5, 5)
    assert hw.Causal().block_mask(5, 5).shape == (1, 1, 5, 5)
    assert hw.Causal().block_mask(5, 5, 2, 4).shape == (2, 4, 5, 5)
    assert hw.Causal().block_mask(5, 5, q_offset=torch.tensor([0, 3])).shape == (2, 1, 5, 5)
    assert hw.Causal().block_mask(0, 5).kv_num_blocks.shape == (1, 1, 0)
    assert hw.Lengths(()).block_mask(5, 5).shape == (0, 1, 5, 5)


@pytest.mark.usefixtures("plain_calls")
def test_refusals_of_a_block_mask() -> None:
    with pytest.raises(hw.PatternError) as caught:
        hw.Lengths((1, 2, 3)).block_mask(5, 5, batch=2)
    assert str(caught.value) == (
        "block_mask: the pattern must tell apart as many samples as the call has, or 1, "
        "got 3 for 2\n  pattern  Lengths(kv_lengths=(1, 2, 3), q_lengths=None)\n"
        "  hint: build the pattern for the samples of this call"
    )
    with pytest.raises(hw.PatternError) as caught:
        hw.Causal().block_mask(5, 5, batch=2, q_offset=(1, 2, 3))
    assert str(caught.value) == (
        "block_mask: offsets are given for 3 samples, and the mask is for 2\n"
        "  hint: give one offset per sample, or one int for all"
    )
    with pytest.raises(hw.PatternError) as caught:
        hw.Causal().block_mask(5, 5, block_size=0)
    assert str(caught.value) == (
        "block_mask: block_size must be an int of at least 1, got 0\n"
        "  hint: 128 is what torch's kernels take"
    )


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize("make", [Pattern.mask_mod, Pattern.block_mask])
def test_offsets_for_other_samples_are_refused(make: Any) -> None:
    with pytest.raises(hw.PatternError) as caught:
        make(hw.Lengths((1, 2)), 5, 5, q_offset=(0, 1, 2))
    assert str(caught.value) == (
        "Lengths: offsets are given for 3 samples, but the pattern holds 2\n"
        "  hint: give one offset per sample of the pattern, or one int for all"
    )


@on_every_kind
@settings(max_examples=5)
@given(data=st.data())
def test_nothing_stays_on_the_cpu(kind: str, data: st.DataObject) -> None:
    s = data.draw(settings_for(kind, LENGTHS))
    allows = data.draw(kind_of(kind, s)).mask_mod(s.q_len, s.kv_len, **s.offsets, device="meta")
    place = torch.zeros(2, dtype=torch.int64, device="meta")
    assert allows(place, place, place, place).is_meta


@pytest.mark.parametrize(
    "pattern",
    [
        hw.Window(1 << 70, 1 << 63, 3),
        hw.Window(1, None, 1 << 62),
        hw.GlobalTokens([1, 3, 1 << 40]),
        hw.Lengths((1 << 40, 3), 1 << 62) & hw.Prefix(1 << 62),
    ],
)
def test_bounds_beyond_every_position(pattern: Pattern) -> None:
    check(pattern, Setting(2, 1, 7, 9))


def test_a_block_mask_on_another_device() -> None:
    found = hw.Causal().block_mask(300, 300, device="meta")
    assert found.kv_indices.is_meta
    assert found.q_indices is not None
    assert found.q_indices.is_meta


def test_a_long_mask_never_spells_out_its_pairs() -> None:
    """The pairs of 100,000 tokens would be 10 GB; the blocks take a thousandth."""
    length = 100_000
    found = (hw.Causal() & hw.Window(511, 0)).block_mask(length, length, block_size=1024)
    rows = -(-length // 1024)
    assert found.full_kv_num_blocks is not None
    assert int(found.kv_num_blocks.sum()) == 2 * rows - 1
    assert int(found.full_kv_num_blocks.sum()) == 0

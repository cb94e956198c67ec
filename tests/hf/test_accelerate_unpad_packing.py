"""Packed tokens see what they saw in the padded batch; they are laid in a row and back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.hf.accelerated.packing import NOTHING, Packing, packing_of
from headwise.hf.pattern_mask import PatternMask
from headwise.patterns import (
    Causal,
    Documents,
    Full,
    GlobalTokens,
    KeyMask,
    Pattern,
    Strided,
    Window,
)
from tests.support.budget import assert_same_bits

RULES: dict[str, Pattern] = {
    "full": Full(),
    "causal": Causal(),
    "window": Window(2, 1),
    "dilated": Window(4, 4, dilation=2),
    "strided": Strided(3) & Causal(),
}
CPU = torch.device("cpu")


def mask(pattern: Pattern, batch: int, length: int, offset: int = 0) -> PatternMask:
    return PatternMask(pattern, (batch, length, length + offset), offset, 0, CPU, None, "test")


@given(
    rule=st.sampled_from(sorted(RULES)),
    lengths=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7)), min_size=1, max_size=4),
    holes=st.booleans(),
)
@settings(max_examples=25)
def test_packed_tokens_see_what_they_saw(
    rule: str, lengths: list[tuple[int, int]], holes: bool
) -> None:
    batch, length = len(lengths), 11
    real = torch.zeros(batch, length, dtype=torch.bool)
    for sample, (start, count) in enumerate(lengths):
        real[sample, start : start + count] = True
        if holes and count > 2:
            real[sample, start + 1] = False
    rest = RULES[rule]
    found = packing_of(mask(rest & KeyMask(real), batch, length))
    if not real.any():
        assert found == "the batch is padding alone"
        return
    if rule not in ("full", "causal") and holes and any(count > 2 for _, count in lengths):
        assert isinstance(found, str)
        assert "padding stands between real tokens" in found
        return
    assert isinstance(found, Packing)
    owner, place = real.nonzero(as_tuple=True)
    total = len(owner)
    assert found.mask.shape == (1, 1, total, total)
    allowed = (rest & KeyMask(real)).dense(length, length, 0, 0).expand(batch, 1, length, length)
    wanted = allowed[owner[:, None], 0, place[:, None], place] & (owner[:, None] == owner)
    assert torch.equal(found.mask.spelled()[0, 0], wanted)
    numbers = torch.randn(batch, length, 2, 3)
    packed = found.packed(numbers)
    assert_same_bits(packed, numbers[real].unsqueeze(0))
    assert_same_bits(found.packed(numbers[:1]), numbers[:1].expand_as(numbers)[real].unsqueeze(0))
    assert_same_bits(found.padded(packed), numbers.masked_fill(~real[..., None, None], 0.0))


def _kept(batch: int = 2, length: int = 5) -> Tensor:
    real = torch.ones(batch, length, dtype=torch.bool)
    real[-1, 3:] = False
    return real


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (Full(), NOTHING),
        (Window(1, 1), NOTHING),
        (KeyMask(torch.ones(2, 5, dtype=torch.bool)), NOTHING),
        (KeyMask(_kept()) | Causal(), NOTHING),
        (
            KeyMask(_kept()) & Documents(torch.tensor([0, 0, 1, 1, 1])),
            "its mask says more than distances and padding",
        ),
        (
            GlobalTokens([0]) & KeyMask(_kept()),
            "its mask says more than distances and padding",
        ),
        (
            KeyMask(_kept()) & (Causal() | KeyMask(_kept())),
            "its mask says more than distances and padding",
        ),
    ],
)
def test_what_is_not_packed(pattern: Pattern, reason: str) -> None:
    assert packing_of(mask(pattern, 2, 5)) == reason


def test_queries_and_keys_that_are_not_the_same_tokens() -> None:
    real = torch.ones(2, 8, dtype=torch.bool)
    real[0, 0] = False
    found = packing_of(mask(Causal() & KeyMask(real), 2, 5, offset=3))
    assert found == "its queries and keys are not the same tokens"


def test_one_mask_is_read_once_and_two_paddings_are_both_padding() -> None:
    one, other = _kept(), _kept()
    other[0, 0] = False
    made = mask(KeyMask(one) & KeyMask(other) & Causal(), 2, 5)
    found = packing_of(made)
    assert packing_of(made) is found
    assert isinstance(found, Packing)
    assert found.place.tolist() == [1, 2, 3, 4, 5, 6, 7]
    shared = packing_of(mask(KeyMask(one[1]), 2, 5))
    assert isinstance(shared, Packing)
    assert shared.place.tolist() == [0, 1, 2, 5, 6, 7]

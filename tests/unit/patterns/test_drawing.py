"""What ``draw`` does with offsets, and how much it takes on."""

import pytest
import torch

import headwise as hw

HINT = "\n  hint: inspection.plots.pattern and headwise explain --draw draw at a scale"


def test_offsets_are_those_of_dense() -> None:
    pattern = hw.Causal() & hw.Window(2, 0)
    assert pattern.draw(2, 4) == "■■■·\n·■■■"
    assert pattern.draw(2, 4, 0) == "■···\n■■··"
    assert pattern.draw(2, 4, q_offset=7, kv_offset=5) == "■■■·\n·■■■"
    assert pattern.draw(1, 2, torch.tensor([0, 3])) == "■·\n\n·■"
    assert pattern.draw(1, 2, kv_offset=(0, 3)) == "■■\n\n■■"


def test_ten_million_pairs_are_drawn() -> None:
    assert hw.Full().draw(1, 10_000_000).count("■") == 10_000_000


@pytest.mark.parametrize(
    ("pattern", "q_len", "kv_len", "says"),
    [
        (hw.Causal(), 65_536, 65_536, "Causal.draw: {} 65,536 queries × 65,536 keys"),
        (
            hw.PerHead([hw.Lengths([1, 2]), hw.Full()]),
            *(2000, 2000),
            "PerHead.draw: {} 2,000 queries × 2,000 keys, 4 times",
        ),
    ],
)
def test_more_pairs_are_refused(
    pattern: hw.patterns.Pattern, q_len: int, kv_len: int, says: str
) -> None:
    with pytest.raises(hw.PatternError) as refused:
        pattern.draw(q_len, kv_len)
    assert str(refused.value) == says.format("at most 10,000,000 pairs are drawn, got") + HINT


def test_negative_lengths_are_refused_as_such() -> None:
    with pytest.raises(hw.PatternError, match="q_len and kv_len must not be negative"):
        hw.Full().draw(-65_536, -65_536)

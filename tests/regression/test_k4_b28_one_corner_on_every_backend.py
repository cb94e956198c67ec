"""B28: two back ends aligned the causal triangle to different corners."""

import pytest
import torch

import headwise as hw
from headwise.patterns import Fixed
from tests.support.judge import judged
from tests.support.paths import Path, on_all
from tests.support.shapes import Sizes, inputs


@on_all
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 4), (4, 1), (3, 7), (7, 3), (60, 20), (20, 60)])
def test_lower_right_unless_an_offset_says_otherwise(path: Path, q_len: int, kv_len: int) -> None:
    given = inputs(Sizes(2, 2, 1, q_len, kv_len, 8, 8))
    ones = torch.ones(q_len, kv_len)
    lower_right, upper_left = ones.tril(kv_len - q_len).bool(), ones.tril().bool()
    judged(path, *given, hw.Causal(), visible=lower_right)
    judged(path, *given, hw.Causal(), visible=upper_left, q_offset=0)
    judged(path, *given, hw.Causal(), visible=upper_left, q_offset=9, kv_offset=9)
    judged(path, *given, hw.Causal(), visible=ones.bool(), q_offset=kv_len)
    judged(path, *given, hw.Causal(), visible=~ones.bool(), q_offset=-q_len)


@on_all
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 4), (4, 1), (3, 7), (7, 3), (60, 20), (20, 60)])
def test_distances_count_from_the_same_corner(path: Path, q_len: int, kv_len: int) -> None:
    """The last query stands beside the last key for windows, strides and blocks, too."""
    given = inputs(Sizes(2, 2, 1, q_len, kv_len, 8, 8))
    query = torch.arange(q_len).view(-1, 1) + kv_len - q_len
    key = torch.arange(kv_len)
    gap = query - key
    for pattern, visible in (
        (hw.Window(2, 1), (gap <= 2) & (gap >= -1)),
        (hw.Strided(5), (gap.abs() < 5) | (gap % 5 == 0)),
        (Fixed(4), (query // 4 == key // 4) | (key % 4 == 3)),
        (hw.BlockWindow(3, 1, 0), (query // 3 - key // 3 <= 1) & (query // 3 >= key // 3)),
        (hw.GlobalTokens(kv_len - 1), (query == kv_len - 1) | (key == kv_len - 1)),
    ):
        judged(path, *given, pattern, visible=visible, label=repr(pattern))

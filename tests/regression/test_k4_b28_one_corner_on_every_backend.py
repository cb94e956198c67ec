"""B28: two back ends aligned the causal triangle to different corners."""

import pytest
import torch

import headwise as hw
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

"""B60: keys and values that are expanded views gave corrupted output under a mask."""

import pytest
import torch

import headwise as hw
from tests.support.judge import judged
from tests.support.paths import Path, on_all


@on_all
@pytest.mark.parametrize("length", [1, 31, 32, 33, 65, 97, 127, 128, 129, 257])
def test_stride_zero(path: Path, length: int) -> None:
    for q_len in (7, 50):
        query = torch.randn(2, 4, q_len, 32)
        key = torch.randn(1, 1, length, 32).expand(2, 4, length, 32)
        value = torch.randn(1, 1, 1, 32).expand(2, 4, length, 32)
        mask = torch.rand(2, 1, q_len, length) < 0.7
        judged(path, query, key, value, hw.Dense(mask), visible=mask)
        row = torch.randn(1, 1, 1, 32).expand(2, 4, q_len, 32)
        judged(path, row, key, value, hw.Dense(mask), visible=mask)
        numbers = torch.randn(1, 1, length, 1).expand(2, 4, length, 32)
        judged(path, query, numbers, numbers, hw.Dense(mask), visible=mask)

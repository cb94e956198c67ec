"""A NaN that a query may see reaches its output, wherever closed keys stand beside it."""

import pytest
import torch

import headwise as hw
from tests.support.paths import Path, on_native


@on_native
@pytest.mark.parametrize("q_len", [1, 20])
@pytest.mark.parametrize("where", [0, 1, 255, 256, 511])
def test_lone_visible_nan_key(path: Path, q_len: int, where: int) -> None:
    query, key, value = torch.randn(1, 1, q_len, 16), *torch.randn(2, 1, 1, 512, 16).unbind(0)
    seen = torch.zeros(1, 512, dtype=torch.bool)
    seen[0, where] = True
    seen[0, 300:310] = True
    key[0, 0, where] = float("nan")
    with path.taken() as backend:
        output = hw.attend(query, key, value, hw.Dense(seen), backend=backend)
    assert bool(output.isnan().all())

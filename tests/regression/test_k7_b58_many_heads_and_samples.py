"""B58: 65536 heads or samples failed, or gave wrong numbers."""

import pytest
import torch

import headwise as hw
from tests.support.budget import assert_within_budget
from tests.support.oracle import attention
from tests.support.paths import Path, on_all
from tests.support.shapes import Inputs

VISIBLE = torch.ones(2, 2).tril().bool()


@on_all
@pytest.mark.parametrize("shape", [(1, 65536, 2, 8), (65537, 1, 2, 8)], ids=str)
def test_first_and_last(path: Path, shape: tuple[int, ...]) -> None:
    given = Inputs(*torch.randn(3, *shape))
    with path.taken() as backend:
        output = hw.attend(*given, hw.Causal(), backend=backend)
    axis = 1 if shape[0] == 1 else 0
    for start in (0, shape[axis] - 3):
        part = Inputs(*(t.narrow(axis, start, 3) for t in given))
        exact = attention(*part, VISIBLE).output
        plain = attention(*part, VISIBLE, dtype=torch.float32).output
        found = output.narrow(axis, start, 3)
        assert_within_budget(found, exact=exact, plain=plain, label=str(path))

"""B50: a score divided or multiplied by a written number came out as divided by sqrt(d).

Under ``torch.compile`` the same is tested in tests/compile/test_scale_as_written.py.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from tests.support.paths import Path, on_all_once
from tests.support.shapes import Sizes
from tests.support.whole_calls import judged_whole, simple

WRITTEN = [3.0, 0.25, 1 / 3.0, 4.0, 1.0, 0.0, -0.5]


@on_all_once
@pytest.mark.parametrize("dim", [8, 16])
@pytest.mark.parametrize("scale", WRITTEN)
@pytest.mark.parametrize("masked", [False, True])
def test_forwards_and_backwards(path: Path, dim: int, scale: float, masked: bool) -> None:
    pattern = hw.Dense(torch.rand(17, 23) > 0.4) if masked else None
    judged_whole(path, simple(Sizes(2, 2, 1, 17, 23, dim, dim), pattern=pattern, scale=scale))


@given(scale=st.floats(-2, 2), dim=st.sampled_from([1, 2, 8, 16, 64]))
def test_a_scale_is_a_factor_of_the_queries(scale: float, dim: int) -> None:
    query, key = torch.randn(1, 2, 5, dim), torch.randn(1, 2, 7, dim)
    torch.testing.assert_close(
        hw.attend(query, key, key, scale=scale), hw.attend(query * scale, key, key, scale=1.0)
    )

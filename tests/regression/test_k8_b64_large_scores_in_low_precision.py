"""B64: attention step by step in bfloat16 or float16 is far off where scores are large."""

import pytest
import torch

from tests.support.budget import largest_error
from tests.support.paths import Path, on_all_once
from tests.support.shapes import Sizes, inputs
from tests.support.whole_calls import judged_whole, simple


@on_all_once
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("length", [13, 64, 128])
def test_as_good_as_rounding_the_exact_answer(path: Path, dtype: torch.dtype, length: int) -> None:
    sizes = Sizes(1, 2, 1, length, length, 64, 64)
    call = simple(sizes, dtype=dtype, given=inputs(sizes, dtype=dtype, spread=30.0))
    exact = call.spelled(torch.float64)
    found = judged_whole(path, call)
    ideal = largest_error(exact.output.to(dtype), exact.output)
    assert largest_error(found.output, exact.output) <= 2 * ideal

"""B12: two masks of ``finfo.min`` were added to -inf, and rows became NaN."""

import pytest
import torch

import headwise as hw
from tests.support.judge import judged
from tests.support.paths import Path, on_all
from tests.support.shapes import Sizes, inputs

LOW = torch.finfo(torch.float32).min


@on_all
def test_masks_are_joined_as_booleans(path: Path) -> None:
    causal, real = torch.ones(5, 5).tril().bool(), torch.arange(5) >= 2
    pattern = hw.Dense(causal) & hw.KeyMask(real)
    output = judged(path, *inputs(Sizes(q_len=5, kv_len=5)), pattern, visible=causal & real)
    assert (output[:, :, :2] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_bias_keeps_its_own_precision(dtype: torch.dtype, backend: str) -> None:
    """The lowest float32 is -inf in float16, and would close the row."""
    given = inputs(Sizes(q_len=2, kv_len=3), dtype=dtype)
    output = hw.attend(*given, bias=torch.full((2, 3), LOW), backend=backend)
    wanted = given.value.double().mean(2, keepdim=True).expand_as(output)
    torch.testing.assert_close(output.double(), wanted, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("low", [-1e300, torch.finfo(torch.float64).min])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_the_lowest_float64_closes_nothing_either(low: float, backend: str) -> None:
    given = inputs(Sizes(q_len=2, kv_len=3))
    bias = torch.full((2, 3), low, dtype=torch.float64)
    output = hw.attend(*given, bias=bias, backend=backend)
    torch.testing.assert_close(output, given.value.mean(2, keepdim=True).expand_as(output))


def test_sdpa_says_why_it_will_not_take_the_lowest_number() -> None:
    """The sum of score and bias may overflow there, and torch would make it NaN."""
    plan = hw.explain(*inputs(Sizes(q_len=2, kv_len=3)), bias=torch.full((2, 3), LOW))
    assert plan.refusals["sdpa"] == [
        "scores may be NaN or infinite, which it lets through where they are masked"
    ]

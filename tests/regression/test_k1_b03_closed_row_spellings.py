"""B03: a closed row gave NaN, zeros or the mean of V, depending on how it was spelled."""

import pytest
import torch

import headwise as hw
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_exact
from tests.support.shapes import Inputs, Sizes, inputs

SIZES = Sizes(1, 2, 1, 4, 4, 8, 8)
OPEN = torch.ones(4, 4, dtype=torch.bool)
OPEN[2] = False


@on_all
def test_boolean(path: Path) -> None:
    output = judged(path, *inputs(SIZES), hw.Dense(OPEN), visible=OPEN)
    assert (output[:, :, 2] == 0).all()


@on_all
def test_minus_infinity(path: Path) -> None:
    bias = torch.zeros(4, 4).masked_fill(~OPEN, float("-inf"))
    output = judged(path, *inputs(SIZES), bias=bias)
    assert (output[:, :, 2] == 0).all()


@on_exact
def test_finfo_min_is_arithmetic_so_the_row_is_the_mean_of_all_values(path: Path) -> None:
    given = inputs(SIZES)
    bias = torch.zeros(4, 4).masked_fill(~OPEN, torch.finfo(torch.float32).min)
    with path.taken() as backend:
        output = hw.attend(*given, bias=bias, backend=backend)
    torch.testing.assert_close(output[:, :, 2], given.value.mean(2), rtol=0, atol=1e-6)
    judged(path, *inputs(SIZES), bias=torch.zeros(4, 4).masked_fill(~OPEN, -1e4))


@on_exact
def test_a_long_finfo_min_row(path: Path) -> None:
    given = inputs(Sizes(1, 2, 1, 61, 300, 8, 8))
    bias = torch.zeros(61, 300)
    bias[[2, 55]] = torch.finfo(torch.float32).min
    with path.taken() as backend:
        output = hw.attend(*given, bias=bias, backend=backend)
    means = given.value.mean(2, keepdim=True).expand(-1, -1, 2, -1)
    torch.testing.assert_close(output[:, :, [2, 55]], means, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa"])
def test_every_dtype_follows_the_same_rules(dtype: torch.dtype, backend: str) -> None:
    given = inputs(SIZES, dtype=dtype)
    closed = hw.attend(*given, hw.Dense(OPEN), backend=backend)
    assert (closed[:, :, 2] == 0).all()
    if backend == "sdpa":
        return
    bias = torch.zeros(4, 4).masked_fill(~OPEN, torch.finfo(torch.float32).min)
    swamped = hw.attend(*given, bias=bias, backend=backend)[:, :, 2]
    step = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        swamped, given.value.double().mean(2).to(dtype), rtol=step, atol=step
    )


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa"])
def test_backward_is_finite(backend: str) -> None:
    shut = torch.zeros(4, 4).masked_fill(~OPEN, float("-inf"))
    low = shut.clamp(min=torch.finfo(torch.float32).min)
    for pattern, bias in ((hw.Dense(OPEN), None), (None, shut), (None, low)):
        if backend == "sdpa" and bias is low:
            continue
        free = Inputs(*(t.requires_grad_() for t in inputs(SIZES)))
        output = hw.attend(*free, pattern, bias=bias, backend=backend)
        gradients = torch.autograd.grad(output.sum(), free)
        for gradient in gradients:
            assert gradient.isfinite().all()
        if bias is not low:
            assert (gradients[0][:, :, 2] == 0).all()


@on_exact
def test_a_row_may_be_closed_by_pattern_and_bias_together(path: Path) -> None:
    even = torch.arange(4) % 2 == 0
    bias = torch.zeros(4).masked_fill(even, float("-inf"))
    output = judged(path, *inputs(SIZES), hw.KeyMask(even), visible=even, bias=bias)
    assert (output == 0).all()

"""B70: where only the bias wants a gradient, kernels skipped what the backward needs."""

import pytest
import torch

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.paths import Path, on_all_once
from tests.support.shapes import Sizes
from tests.support.whole_calls import judged_whole, simple

SHAPES = [(5, 5), (1, 5), (5, 1), (2, 1, 1, 5), (1, 3, 1, 1), (2, 3, 5, 5), ()]


@on_all_once
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("closed", [False, True], ids=["finite", "with -inf"])
def test_alone_and_with_all(path: Path, shape: tuple[int, ...], closed: bool) -> None:
    bias = torch.randn(shape)
    if closed and bias.numel() > 1:
        bias.view(-1)[::2] = float("-inf")
    # Gradients of a bias along rows sum to 0 there; the log-sum-exp's do not.
    d_lse = None if path.backend == "sdpa" else torch.randn(2, 3, 5)
    call = simple(Sizes(2, 3, 1, 5, 5, 8, 8), bias=bias, d_lse=d_lse)
    wanted = judged_whole(path, call).d_bias
    assert wanted is not None
    assert wanted.shape == bias.shape
    assert (wanted[bias == float("-inf")] == 0).all()
    alone = bias.clone().requires_grad_()
    with path.taken() as backend:
        if d_lse is None:
            results = [hw.attend(*call.given, bias=alone, backend=backend)]
        else:
            results = list(hw.attend_with_lse(*call.given, bias=alone, backend=backend))
        weights = [call.d_output, d_lse][: len(results)]
        (found,) = torch.autograd.grad(results, alone, weights)
    assert_same_bits(found, wanted)

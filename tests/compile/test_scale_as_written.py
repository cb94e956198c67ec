"""B50 under torch.compile: the scale of a compiled call is the one that was written."""

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_within_budget
from tests.support.oracle import attention
from tests.support.shapes import Inputs, Sizes, inputs

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.mark.slow
@pytest.mark.parametrize("dim", [8, 16])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(dim: int, masked: bool, backend: str) -> None:
    given = Inputs(*(t.requires_grad_() for t in inputs(Sizes(2, 2, 1, 5, 7, dim, dim))))
    visible = torch.rand(5, 7) > 0.3 if masked else torch.ones(5, 7, dtype=torch.bool)
    pattern = hw.Dense(visible) if masked else None
    for scale in (3.0, 1 / 3.0, 0.25, 4.0):
        torch._dynamo.reset()

        def call(q: Tensor, k: Tensor, v: Tensor, factor: float = scale) -> Tensor:
            return hw.attend(q, k, v, pattern, scale=factor)

        found, eager = torch.compile(call, fullgraph=True, backend=backend)(*given), call(*given)
        exact, plain = (
            attention(*given, visible, scale=scale, dtype=dtype).output
            for dtype in (torch.float64, torch.float32)
        )
        assert_within_budget(found, exact=exact, plain=plain, label=str(scale))
        upstream = torch.randn_like(found)
        gradients = (torch.autograd.grad(out, given, upstream) for out in (found, eager))
        for mine, right in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, right)

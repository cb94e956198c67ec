"""torch's own causal flag gives NaN for a scale of 0 or less."""

import pytest
import torch

import headwise as hw
from tests.support.oracle import attention
from tests.support.shapes import Sizes, inputs


@pytest.mark.parametrize("scale", [0.0, -1.0, -30.0])
@pytest.mark.parametrize("backend", ["auto", "sdpa", "reference"])
def test_causal_with_gradients(scale: float, backend: str) -> None:
    query, key, value = (t.requires_grad_() for t in inputs(Sizes(q_len=5, kv_len=5)))
    output = hw.attend(query, key, value, hw.Causal(), scale=scale, backend=backend)
    exact = attention(query, key, value, hw.Causal().dense(5, 5), scale=scale).output
    torch.testing.assert_close(output.double(), exact, rtol=1e-4, atol=1e-5)
    found = torch.autograd.grad(output.sum(), (query, key, value))
    assert all(bool(gradient.isfinite().all()) for gradient in found)

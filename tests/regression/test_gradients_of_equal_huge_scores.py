"""Rows whose scores are all huge and alike: their weights are equal, and so are the gradients."""

import pytest
import torch

import headwise as hw


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("q_len", [4, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_of_the_smallest_number(backend: str, q_len: int, dtype: torch.dtype) -> None:
    query, key = torch.zeros(1, 1, q_len, 1, dtype=dtype), torch.zeros(1, 1, 4, 1, dtype=dtype)
    value = torch.arange(4.0).view(1, 1, 4, 1).to(dtype).requires_grad_()
    bias = torch.full((q_len, 4), torch.finfo(torch.float32).min)
    output = hw.attend(query, key, value, bias=bias, backend=backend)
    assert torch.equal(output, torch.full_like(output, 1.5))
    (gradient,) = torch.autograd.grad(output[0, 0, 0].sum(), value)
    assert gradient.flatten().tolist() == [0.25] * 4


def test_a_scale_that_is_nearly_nothing() -> None:
    query, key, value = (torch.randn(1, 1, 20, 8) for _ in range(3))
    output = hw.attend(query, key, value, scale=1e-38, backend="native")
    torch.testing.assert_close(output, value.mean(2, keepdim=True).expand_as(output))

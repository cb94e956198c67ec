"""B22: a float32 mask with bfloat16 queries under autocast raised an error."""

import pytest
import torch

import headwise as hw
from tests.support.budget import assert_within_budget
from tests.support.oracle import attention
from tests.support.shapes import Inputs, Sizes, inputs

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
GIVEN = inputs(Sizes(1, 2, 1, 4, 4, 8, 8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa"])
@pytest.mark.parametrize("masked", [False, True])
def test_every_dtype_of_bias(dtype: torch.dtype, backend: str, masked: bool) -> None:
    pattern, visible = (hw.Causal(), torch.ones(4, 4).tril().bool()) if masked else (None, None)
    bias = torch.randn(4, 4).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = hw.attend(*GIVEN, pattern, bias=bias, backend=backend)
    assert output.dtype == torch.bfloat16
    rounded = Inputs(*(t.bfloat16() for t in GIVEN))
    exact = attention(*rounded, visible, bias=bias)
    plain = attention(*rounded, visible, bias=bias, dtype=torch.bfloat16)
    assert_within_budget(output, exact=exact.output, plain=plain.output, label=f"{backend} {dtype}")


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "native"])
def test_a_float64_bias_with_float32_queries(backend: str) -> None:
    bias = torch.randn(4, 4, dtype=torch.float64)
    output = hw.attend(*GIVEN, bias=bias, backend=backend)
    assert output.dtype == torch.float32
    exact, plain = attention(*GIVEN, bias=bias), attention(*GIVEN, bias=bias, dtype=torch.float32)
    assert_within_budget(output, exact=exact.output, plain=plain.output, label=backend)


@pytest.mark.parametrize("query", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bias", DTYPES)
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa"])
def test_mixed_without_autocast(query: torch.dtype, bias: torch.dtype, backend: str) -> None:
    given, numbers = Inputs(*(t.to(query) for t in GIVEN)), torch.randn(4, 4).to(bias)
    output = hw.attend(*given, bias=numbers, backend=backend)
    assert output.dtype == query
    exact = attention(*given, bias=numbers)
    plain = attention(*given, bias=numbers, dtype=query)
    assert_within_budget(output, exact=exact.output, plain=plain.output, label=backend)


def test_layers_return_one_dtype_in_every_mode() -> None:
    layer, x = hw.MultiHeadAttention(8, 2), torch.randn(2, 4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trained = layer.train()(x)
        with torch.no_grad():
            evaluated = layer.eval()(x)
    assert trained.dtype == evaluated.dtype == torch.bfloat16
    torch.testing.assert_close(trained, evaluated, rtol=0.02, atol=0.02)

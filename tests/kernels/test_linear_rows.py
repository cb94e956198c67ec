"""The kernel for linear maps of few rows: every instruction set, dtype, stride and thread count."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from headwise import _native
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.paths import ISAS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
on_sets = pytest.mark.parametrize("isa", ISAS)
on_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def strided(rows: int, columns: int, gap: int, dtype: torch.dtype) -> Tensor:
    """Draw a matrix whose rows lie ``gap`` numbers apart, NaN between them."""
    room = torch.full((rows, columns + gap), torch.nan)
    room[:, :columns] = torch.randn(rows, columns)
    return room.to(dtype)[:, :columns]


def multiplied(x: Tensor, weight: Tensor, bias: Tensor | None, threads: int = 1) -> Tensor:
    output = torch.full((x.shape[0], weight.shape[0]), torch.nan, dtype=x.dtype)
    _native.kernels.linear_rows(x, weight, bias, output, threads)
    return output


@on_sets
@on_dtypes
@settings(max_examples=30)
@given(
    rows=st.integers(0, 9),
    inputs=st.sampled_from([0, 1, 3, 16, 31, 37, 64, 97]),
    outputs=st.sampled_from([0, 1, 3, 4, 5, 13, 33]),
    gap=st.integers(0, 3),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_is_the_linear_map(
    isa: str,
    dtype: torch.dtype,
    rows: int,
    inputs: int,
    outputs: int,
    gap: int,
    biased: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(rows, inputs).to(dtype), strided(outputs, inputs, gap, dtype)
    bias = torch.randn(outputs).to(dtype) if biased else None
    wide = None if bias is None else bias.double()
    exact = functional.linear(x.double(), weight.double(), wide)
    with _native.use_isa(isa):
        found = multiplied(x, weight, bias)
    assert_within_budget(found, exact=exact, plain=functional.linear(x, weight, bias), label=isa)


@on_sets
@on_dtypes
def test_a_row_has_the_same_bits_beside_others_and_on_any_threads(
    isa: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(7, 1031).to(dtype), torch.randn(307, 1031).to(dtype)
    with _native.use_isa(isa):
        together = multiplied(x, weight, None, threads=1)
        for threads in (2, 5):
            assert_same_bits(multiplied(x, weight, None, threads), together)
        for row in range(7):
            alone = multiplied(x[row : row + 1], weight, None, threads=2)
            assert_same_bits(alone, together[row : row + 1])


@on_sets
def test_what_is_not_finite_stays_in_its_row_and_column(isa: str) -> None:
    x, weight = torch.ones(3, 37), torch.ones(5, 37)
    x[1, 7], weight[2, 9] = torch.nan, torch.inf
    with _native.use_isa(isa):
        found = multiplied(x, weight, None)
    wanted = torch.full((3, 5), 37.0)
    wanted[1], wanted[0, 2], wanted[2, 2] = torch.nan, torch.inf, torch.inf
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "output", "text"),
    [
        (torch.ones(2, 3), torch.ones(4, 5), None, torch.ones(2, 4), "weight must be"),
        (torch.ones(2, 3), torch.ones(4, 3), None, torch.ones(2, 5), "output must be"),
        (torch.ones(2, 3), torch.ones(4, 3), None, torch.ones(3, 4), "output must be"),
        (torch.ones(2, 3), torch.ones(4, 3).half(), None, torch.ones(2, 4), "share one dtype"),
        (torch.ones(2, 3), torch.ones(3, 4).T, None, torch.ones(2, 4), "innermost stride"),
        (torch.ones(2, 3), torch.ones(4, 3), torch.ones(3), torch.ones(2, 4), "bias must be"),
        (torch.ones(2, 3), torch.ones(3), None, torch.ones(2, 4), "weight must be"),
        (torch.ones(()), torch.ones(4, 3), None, torch.ones(2, 4), "an axis of numbers"),
        (torch.ones(2, 4)[:, :3], torch.ones(4, 3), None, torch.ones(2, 4), "no gaps"),
        (torch.ones(2, 3), torch.ones(4, 3), None, torch.ones(4).expand(2, 4), "no gaps"),
    ],
)
def test_wrong_memory_is_refused(
    x: Tensor, weight: Tensor, bias: Tensor | None, output: Tensor, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        _native.kernels.linear_rows(x, weight, bias, output, 1)

"""K14, B102, K8, B66, and K2, B10: linear attention without its divisor, and what it divides by."""

from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.linear import EVERY_FORM, FORMS, assert_near, features


def case() -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (torch.randn(1, 1, 4, 2, dtype=torch.float64) for _ in range(3))
    return query, key, value


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [True, False])
def test_weights_sum_to_one(form: str, causal: bool) -> None:
    query, key, value = case()
    ones = torch.ones_like(value)
    found = hw.linear_attend(query, key, ones, feature_map="elu", causal=causal, backend=form)
    assert_near(found.output, ones)


@pytest.mark.parametrize("form", FORMS)
def test_the_causal_divisor_is_that_of_the_row(form: str) -> None:
    query, key, value = case()
    spelled = (features("elu", query) @ features("elu", key).mT).tril()
    wanted = spelled / spelled.sum(-1, keepdim=True) @ value
    found = hw.linear_attend(query, key, value, feature_map="elu", causal=True, backend=form)
    assert_near(found.output, wanted)


@pytest.mark.parametrize(
    "pattern",
    [hw.Window(1, 0), hw.Causal() & hw.Window(2, 0), ~hw.Causal(), hw.Causal() | hw.Prefix(2)],
    ids=str,
)
def test_a_pattern_that_is_not_exactly_causal_is_refused(pattern: Any) -> None:
    layer = hw.MultiHeadAttention(8, 2, mechanism=hw.nn.LinearAttention("elu"))
    with pytest.raises(hw.PatternError, match=r"the pattern must be none or Causal\(\), got"):
        layer(torch.randn(1, 4, 8), pattern=pattern)


def test_a_mask_is_refused_and_padding_is_not() -> None:
    layer = hw.MultiHeadAttention(8, 2, mechanism=hw.nn.LinearAttention("elu"))
    x, mask = torch.randn(1, 4, 8), torch.ones(4, 4).tril() > 0
    with pytest.raises(hw.PatternError, match=r"give padding as kv_mask="):
        layer(x, mask=mask)
    real = torch.tensor([[True, True, False, True]])
    assert_within_budget(
        layer(x, kv_mask=real)[:, real[0]],
        exact=layer.double()(x[:, real[0]].double()),
        plain=layer.float()(x[:, real[0]]),
        label="padding",
    )


@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize(
    ("dtype", "at"),
    [
        (torch.bfloat16, -8.0),
        (torch.float32, -17.0),
        (torch.float32, -20.0),
        (torch.float16, -10.0),
    ],
    ids=str,
)
def test_one_token_gets_its_value(form: str, dtype: torch.dtype, at: float) -> None:
    token = torch.full((1, 1, 1, 3), at, dtype=dtype)
    value = torch.tensor([[[[0.5, -3.0]]]], dtype=dtype)
    for causal in (True, False):
        found = hw.linear_attend(
            token, token, value, feature_map="elu", causal=causal, backend=form
        )
        assert_within_budget(found.output, exact=value.double(), plain=value, label=f"{at}")


def test_the_gradient_at_zero_is_one() -> None:
    x = torch.zeros(1, 1, 1, 1, requires_grad=True)
    (slope,) = torch.autograd.grad(features("elu", x).sum(), x)
    assert slope.item() == 1.0


@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_padding_is_in_no_sum(form: str, odd: float) -> None:
    query, key, value = (torch.randn(1, 1, 2, 4) for _ in range(3))
    real = torch.tensor([[True, False]])

    def ran(causal: bool) -> Tensor:
        found = hw.linear_attend(
            query, key, value, feature_map="elu", causal=causal, kv_mask=real, backend=form
        )
        return torch.cat([found.output.flatten(), found.state.sums.flatten()])

    usual = [ran(causal) for causal in (True, False)]
    key[:, :, 1], value[:, :, 1] = odd, odd
    for before, causal in zip(usual, (True, False), strict=True):
        assert_same_bits(ran(causal), before)

"""The tolerance rule and the oracle that judge everything else."""

import pytest
import torch

from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.oracle import attention
from tests.support.shapes import inputs

EXACT = torch.tensor([1.0, 2.0, float("-inf")], dtype=torch.float64)


def test_the_budget_is_twice_the_error_of_the_plain_spelling() -> None:
    plain = EXACT.float() + torch.tensor([0.01, 0.0, 0.0])
    near = EXACT.float() + torch.tensor([0.0, 0.019, 0.0])
    assert_within_budget(near, exact=EXACT, plain=plain, label="near")
    with pytest.raises(AssertionError, match=r"far: error 2\.1"):
        assert_within_budget(EXACT.float() + 0.021, exact=EXACT, plain=plain, label="far")


def test_a_lucky_plain_spelling_leaves_a_few_rounding_steps() -> None:
    plain = EXACT.float()
    step = 2 * torch.finfo(torch.float32).eps
    assert_within_budget(plain + 3 * step, exact=EXACT, plain=plain, label="near")
    with pytest.raises(AssertionError, match="exceeds the budget"):
        assert_within_budget(plain + 20 * step, exact=EXACT, plain=plain, label="far")


@pytest.mark.parametrize("wrong", [[1.0, 2.0, 0.0], [1.0, float("nan"), float("-inf")]])
def test_infinities_and_nan_must_stand_where_they_should(wrong: list[float]) -> None:
    with pytest.raises(AssertionError):
        assert_within_budget(torch.tensor(wrong), exact=EXACT, plain=EXACT.float(), label="")


def test_shapes_are_not_broadcast() -> None:
    with pytest.raises(AssertionError, match="shapes"):
        assert_within_budget(EXACT[:1].float(), exact=EXACT, plain=EXACT.float(), label="")


def test_bits_see_what_equality_does_not() -> None:
    assert_same_bits(torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]))
    with pytest.raises(AssertionError, match="1 entries differ"):
        assert_same_bits(torch.tensor([0.0]), torch.tensor([-0.0]), "zero")


def test_the_oracle_agrees_with_torch() -> None:
    query, key, value = inputs(dtype=torch.float64)
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(attention(query, key, value).output, wanted)


def test_the_oracle_closes_rows_and_keeps_masked_nan_out() -> None:
    query, key, value = inputs(dtype=torch.float64)
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2], mask[:, 6] = False, False
    wanted = attention(query, key, value, mask)
    value[:, :, 6], key[:, :, 6] = float("nan"), float("inf")
    found = attention(query, key, value, mask)
    torch.testing.assert_close(found, wanted)
    assert (found.output[:, :, 2] == 0).all()
    assert (found.lse[:, :, 2] == float("-inf")).all()


def test_fresh_memory_is_filled_with_nan() -> None:
    assert torch.empty(7).isnan().all()
    assert torch.zeros(3).new_empty(5).isnan().all()

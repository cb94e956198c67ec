"""B10: NaN in a masked key or value made the output NaN."""

import pytest
import torch

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.paths import Path, on_exact, on_layers
from tests.support.shapes import Inputs

MASK = hw.Dense([[1, 0], [1, 0]])
ODD = (float("nan"), float("inf"), float("-inf"), 1e10, 1e30)


@on_exact
@pytest.mark.parametrize("odd", ODD)
def test_two_tokens(path: Path, odd: float) -> None:
    query, key, value = torch.randn(3, 1, 1, 2, 4).unbind(0)
    with path.taken() as backend:
        wanted = hw.attend_with_lse(query, key, value, MASK, backend=backend)
        for spoiled in (0, 1):
            given = [key.clone(), value.clone()]
            given[spoiled][:, :, 1] = odd
            found = hw.attend_with_lse(*Inputs(query, *given), MASK, backend=backend)
            assert_same_bits(found.output, wanted.output)
            assert_same_bits(found.lse, wanted.lse)


@on_exact
@pytest.mark.parametrize("odd", ODD)
def test_minus_infinity_in_a_bias_masks_as_well(path: Path, odd: float) -> None:
    query, key, value = torch.randn(3, 1, 1, 60, 4).unbind(0)
    bias = torch.zeros(60)
    bias[[1, 30, 59]] = float("-inf")
    with path.taken() as backend:
        wanted = hw.attend(query, key, value, bias=bias, backend=backend)
        key[:, :, 30], value[:, :, 59], value[:, :, 1] = odd, odd, odd
        assert_same_bits(hw.attend(query, key, value, bias=bias, backend=backend), wanted)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("grad", [False, True])
def test_auto_never_lets_it_through(odd: float, grad: bool) -> None:
    query, key, value = torch.randn(3, 1, 1, 2, 4).unbind(0)
    wanted = hw.attend(query, key, value, MASK)
    for spoiled in (0, 1):
        given = [key.clone(), value.clone()]
        given[spoiled][:, :, 1] = odd
        found = hw.attend(*Inputs(query.clone().requires_grad_(grad), *given), MASK)
        torch.testing.assert_close(found.detach(), wanted)


@on_layers
@pytest.mark.parametrize("odd", ODD)
def test_padded_batches_of_a_layer(path: Path, odd: float) -> None:
    """The layer's own projections would spread NaN, so it stands in the projected keys."""
    layer = hw.MultiHeadAttention(8, 2).eval()
    memory = torch.randn(2, 5, 8)
    real = torch.tensor([[True] * 5, [True, True, False, False, False]])
    query = torch.randn(2, 3, 8)
    with path.taken(), torch.no_grad():
        wanted = layer(query, memory, kv_mask=real)
        memory[1, 2:] = odd
        assert_same_bits(layer(query, memory, kv_mask=real), wanted)


@on_exact
def test_a_visible_nan_is_seen_by_those_who_may_see_it(path: Path) -> None:
    query, key, value = torch.randn(3, 1, 1, 70, 4).unbind(0)
    value[:, :, 60, 2] = float("nan")
    with path.taken() as backend:
        output = hw.attend(query, key, value, hw.Causal(), backend=backend)
    assert output[:, :, :60].isfinite().all()
    assert output[:, :, 60:, 2].isnan().all()
    assert output[..., [0, 1, 3]].isfinite().all()

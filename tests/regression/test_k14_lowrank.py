"""B104: low-rank projections let the future through a causal mask, and padding into every row."""

from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits, largest_error

LENGTH, RANK = 4, 2
BOTH = ("auto", "reference")


def drawn() -> tuple[Tensor, ...]:
    query, key, value = torch.randn(3, 1, 1, LENGTH, 3, dtype=torch.float64).unbind(0)
    return (query, key, value, *torch.randn(2, RANK, LENGTH, dtype=torch.float64).unbind(0))


@pytest.mark.parametrize("backend", BOTH)
def test_every_token_reaches_every_row(backend: str) -> None:
    """So a mask over (length, rank) cannot make it causal."""
    query, key, value, for_keys, for_values = drawn()
    before = hw.lowrank_attend(query, key, value, for_keys, for_values, backend=backend)
    key, value = key.clone(), value.clone()
    key[:, :, 3], value[:, :, 3] = 5.0, -7.0
    after = hw.lowrank_attend(query, key, value, for_keys, for_values, backend=backend)
    assert bool(((after - before).abs().amax(-1) > 1e-3).all())


def test_causal_use_is_refused_with_the_way_out() -> None:
    mechanism = hw.nn.LowRank(RANK, LENGTH, "heads")
    x = torch.randn(1, LENGTH, 6)
    masks: dict[str, dict[str, Any]] = {
        "pattern": {"pattern": hw.Causal()},
        "mask": {"mask": torch.ones(LENGTH, LENGTH).tril()},
    }
    for given in masks.values():
        with pytest.raises(hw.PatternError) as caught:
            hw.MultiHeadAttention(6, 2, mechanism=mechanism)(x, **given)
        for way in ("LinearAttention", "headwise.Causal() & headwise.Window", "kv_mask="):
            assert way in str(caught.value)


@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("odd", [9.0, float("nan"), float("inf")])
def test_padding_is_zero_before_the_projection(backend: str, odd: float) -> None:
    query, key, value, for_keys, for_values = drawn()
    real = torch.tensor([[True, True, True, False]])
    before = hw.lowrank_attend(
        query, key, value, for_keys, for_values, kv_mask=real, backend=backend
    )
    key, value = key.clone(), value.clone()
    key[:, :, 3], value[:, :, 3] = odd, odd
    after = hw.lowrank_attend(
        query, key, value, for_keys, for_values, kv_mask=real, backend=backend
    )
    assert_same_bits(after, before)
    cut = hw.lowrank_attend(
        query, key[:, :, :3], value[:, :, :3], for_keys[:, :3], for_values[:, :3], backend=backend
    )
    assert largest_error(before, cut) < 1e-14


@pytest.mark.parametrize("backend", BOTH)
def test_projected_keys_of_zeros_stay_in_the_softmax(backend: str) -> None:
    """One real token and a projection that leaves half of the projected keys empty: score 0."""
    query = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    token = torch.full((1, 1, LENGTH, 1), 3.0, dtype=torch.float64)
    projection = torch.tensor([[1, 0, 0, 0], [0, 1, 1, 1]], dtype=torch.float64)
    real = torch.tensor([[1, 0, 0, 0]])
    found = hw.lowrank_attend(
        query, token, token, projection, projection, kv_mask=real, backend=backend
    )
    share = torch.tensor([3.0, 0.0], dtype=torch.float64).softmax(0)[0]
    assert found.item() == pytest.approx(3.0 * share.item(), rel=1e-14)


def test_projecting_before_the_heads_differs_by_the_bias() -> None:
    """Here length is projected behind ``W_k``; before it, the bias counts once for each row sum."""
    layer = hw.MultiHeadAttention(6, 2, mechanism=hw.nn.LowRank(RANK, LENGTH, "heads")).double()
    x = torch.randn(1, LENGTH, 6, dtype=torch.float64)
    mechanism = layer.mechanism
    assert isinstance(mechanism, hw.nn.LowRank)
    assert mechanism.key_projection is not None
    projection = mechanism.key_projection.matrix(LENGTH, None)
    behind = mechanism.key_projection(layer.project(x)[1], None)
    before = layer.split_heads(layer.W_k(projection @ x))
    assert largest_error(before, behind) > 1e-3
    sums = projection.sum(1, keepdim=True) - 1.0
    moved = before + layer.split_heads((sums * layer.W_k.bias).unsqueeze(0))
    assert largest_error(moved, behind) < 1e-14

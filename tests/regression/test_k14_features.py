"""B102: features without the normaliser, or with the scale in one of two places only."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.nn import RandomFeatures

MAPS = ["elu", "relu", "squared_relu", "softmax", RandomFeatures(16, 2)]
on_maps = pytest.mark.parametrize("feature_map", MAPS, ids=str)


def tokens() -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(3)
    # Above 0, so that no row of a map that cuts negative numbers off is empty.
    drawn = torch.randn(3, 1, 2, 4, 2, generator=source, dtype=torch.float64).abs()
    return drawn[0], drawn[1], drawn[2]


@on_maps
@pytest.mark.parametrize("causal", [False, True])
def test_weights_sum_to_1_at_every_position(
    feature_map: str | RandomFeatures, causal: bool
) -> None:
    query, key, value = tokens()
    output = hw.linear_attend(
        query, key, torch.ones_like(value), feature_map=feature_map, causal=causal
    ).output
    torch.testing.assert_close(output, torch.ones_like(value))


@on_maps
@pytest.mark.parametrize("causal", [False, True])
def test_products_of_features_normalised(feature_map: str | RandomFeatures, causal: bool) -> None:
    query, key, value = tokens()
    rules: dict[str, Callable[[Tensor], Tensor]] = {
        "elu": lambda x: torch.nn.functional.elu(x) + 1,
        "relu": torch.relu,
        "squared_relu": lambda x: torch.relu(x) ** 2,
        "softmax": lambda x: x.softmax(-1),
    }
    rule = rules[feature_map] if isinstance(feature_map, str) else feature_map
    weights = rule(query) @ rule(key).mT
    weights = weights.tril() if causal else weights
    wanted = weights / weights.sum(-1, keepdim=True) @ value
    found = hw.linear_attend(query, key, value, feature_map=feature_map, causal=causal).output
    torch.testing.assert_close(found, wanted)


def test_random_features_carry_the_scale_of_softmax_attention() -> None:
    """``d ** -0.25`` in queries and in keys: with many features the output is that of attend."""
    source = torch.Generator().manual_seed(0)
    query, key, value = 0.5 * torch.randn(3, 1, 2, 4, 8, generator=source, dtype=torch.float64)
    exact = hw.attend(query, key, value)
    errors = [
        (hw.linear_attend(query, key, value, feature_map=made).output - exact).abs().max().item()
        for made in (RandomFeatures(8192, 8), RandomFeatures(8192, 8, scale=1.0))
    ]
    assert errors[0] < 0.02
    assert errors[1] > 0.1


@pytest.mark.parametrize("scale", [None, 0.2])
def test_the_scale_by_hand(scale: float | None) -> None:
    """A token of zeros has the same features as all others of length 0: 1 over sqrt(count)."""
    made = RandomFeatures(4, 2, scale=scale)
    torch.testing.assert_close(made(torch.zeros(1, 2)), torch.full((1, 4), 0.5))
    assert made.projection is not None
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    size = 25 * (1 / math.sqrt(2) if scale is None else scale)
    along = x @ made.projection.double().T * math.sqrt(size / 25)
    torch.testing.assert_close(made(x), (along - size / 2).exp() / 2)

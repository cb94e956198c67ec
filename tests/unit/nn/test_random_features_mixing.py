"""Random features as the mechanism of a layer."""

from typing import Any

import pytest
import torch

import headwise as hw
from headwise.nn import AttentionCall, LinearAttention, RandomFeatures
from headwise.patterns import Pattern
from tests.support.budget import assert_same_bits


def asked(**named: Any) -> AttentionCall:
    query, key, value = torch.randn(3, 2, 3, 5, 4).unbind(0)
    return AttentionCall(query, key, value, **named)


@pytest.mark.parametrize("pattern", [None, hw.Causal()])
def test_a_mechanism_by_itself(pattern: Pattern | None) -> None:
    """It is linear attention with this map, in every method."""
    made = RandomFeatures(8, 4)
    around, call = LinearAttention(made), asked(pattern=pattern)
    found, wanted = made(call, None), around(call, None)
    assert_same_bits(found.output, wanted.output)
    for mine, its in zip(found.state, wanted.state, strict=True):
        assert_same_bits(mine, its)
    assert_same_bits(made.reference(call), around.reference(call))
    torch.testing.assert_close(found.output, made.reference(call))
    for mine, its in zip(made.state(call), around.state(call), strict=True):
        assert_same_bits(mine, its)
    assert_same_bits(made.weights(call, rows=[1, 3]), around.weights(call, rows=[1, 3]))
    sizes = {"q_heads": 3, "kv_heads": 3, "head_dim": 4, "value_dim": 4}
    assert made.cost(5, 5, **sizes) == around.cost(5, 5, **sizes)


def test_a_layer_with_its_cache_and_its_state_dict() -> None:
    made = RandomFeatures(16, seed=5)
    layer = hw.MultiHeadAttention(12, 3, num_kv_heads=1, pattern=hw.Causal(), mechanism=made)
    x = torch.randn(2, 7, 12)
    with torch.no_grad():
        whole, cache = layer(x), hw.KVCache()
        steps = [layer(part, cache=cache) for part in torch.split(x, [4, 1, 2], 1)]
        torch.testing.assert_close(torch.cat(steps, 1), whole)
        twin = hw.MultiHeadAttention(
            12, 3, num_kv_heads=1, pattern=hw.Causal(), mechanism=RandomFeatures(16)
        )
        twin.load_state_dict(layer.state_dict())
        assert_same_bits(twin(x), whole)
    assert [name for name, _ in layer.named_modules() if "mechanism" in name] == ["mechanism"]


@pytest.mark.slow
def test_a_layer_tells_the_width_when_it_is_made() -> None:
    made, inside = RandomFeatures(16), RandomFeatures(16)
    layer = hw.MultiHeadAttention(12, 3, mechanism=made)
    hw.MultiHeadAttention(12, 3, mechanism=LinearAttention(inside))
    assert made.head_dim == inside.head_dim == 4
    x = torch.randn(2, 7, 12)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x))

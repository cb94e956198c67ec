"""A mechanism with a state beside a cache: which caches, which masks, what it is asked."""

from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.nn import LinearAttention
from tests.support.budget import assert_same_bits, largest_error

X = torch.randn(2, 10, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def layer_with(feature_map: Any = "elu", **given: Any) -> hw.MultiHeadAttention:
    mechanism = LinearAttention(feature_map)
    made = hw.MultiHeadAttention(12, 4, pattern=hw.Causal(), mechanism=mechanism, **given)
    return made.double().eval().requires_grad_(False)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "window": ({"window": 3}, "window=3 of the cache is about keys and values"),
    "dtype": ({"dtype": torch.int8}, "dtype=torch.int8 of the cache is about keys and values"),
    "pool": ({"pool": hw.PagePool()}, "pool of the cache is about keys and values"),
    "capacity": ({"capacity": 4}, "capacity of the cache is 4 tokens"),
}


@pytest.mark.parametrize(("settings", "text"), REFUSED.values(), ids=REFUSED)
def test_settings_that_a_state_does_not_follow_are_refused(
    settings: dict[str, Any], text: str
) -> None:
    layer, cache = layer_with(), hw.KVCache(**settings)
    with pytest.raises(hw.CacheError) as caught:
        layer(X, cache=cache)
    name = next(iter(settings))
    assert str(caught.value).startswith(f"MultiHeadAttention: {text}")
    for word in ("mechanism LinearAttention", "hint:", f"without {name}", "state"):
        assert word in str(caught.value).replace("or without one", "without capacity")
    assert cache.length() == 0


def test_a_capacity_counts_tokens() -> None:
    layer, cache = layer_with(), hw.KVCache(capacity=7)
    layer(X[:, :6], cache=cache)
    layer(X[:, 6:7], cache=cache)
    with pytest.raises(hw.CacheError, match="stands for 7, and 3 more were given"):
        layer(X[:, 7:], cache=cache)
    assert cache.length() == 7


@pytest.mark.parametrize("mechanism", [LinearAttention("elu"), None], ids=["linear", "softmax"])
@pytest.mark.parametrize("columns", [5, 7, 50])
def test_a_mask_has_a_column_for_each_key(mechanism: Any, columns: int) -> None:
    layer = hw.MultiHeadAttention(12, 4, pattern=hw.Causal(), mechanism=mechanism).double().eval()
    cache = hw.KVCache()
    layer(X[:, :5], cache=cache)
    with pytest.raises(hw.PatternError):
        layer(X[:, 5:], kv_mask=torch.ones(2, columns, dtype=torch.bool), cache=cache)
    assert cache.length() == 5
    layer(X[:, 5:], kv_mask=torch.ones(2, 10, dtype=torch.bool), cache=cache)


def test_masks_of_steps_are_the_mask_of_the_whole() -> None:
    layer, cache = layer_with(), hw.KVCache()
    real = torch.rand(2, 10) < 0.6
    steps = [
        layer(X[:, a:b], kv_mask=real[:, :b], cache=cache) for a, b in ((0, 4), (4, 5), (5, 10))
    ]
    assert largest_error(torch.cat(steps, 1), layer(X, kv_mask=real)) < 1e-13


def test_a_mask_says_how_many_columns_it_lacks() -> None:
    layer, cache = layer_with(), hw.KVCache()
    layer(X[:, :5], cache=cache)
    with pytest.raises(hw.PatternError) as caught:
        layer(X[:, 5:], kv_mask=torch.ones(2, 5, dtype=torch.bool), cache=cache)
    assert str(caught.value) == (
        "MultiHeadAttention: kv_mask must have a column for each key, 5 of the cache and 5 new "
        "ones, got (2, 5)\n  hint: True = real token; tokens in the cache have columns, too"
    )


def test_another_batch_is_refused_in_words_of_the_cache() -> None:
    layer, cache = layer_with(), hw.KVCache()
    layer(X, cache=cache)
    with pytest.raises(hw.CacheError) as caught:
        layer(X[:1, :1], cache=cache)
    assert str(caught.value) == (
        "MultiHeadAttention: layer 0 of the cache keeps a state of 2 samples, and the call is of "
        "1\n  hint: one cache serves one batch of one model; reset() starts anew"
    )


def test_a_map_is_asked_about_the_tokens_of_a_step_alone() -> None:
    asked: list[int] = []

    def counted(x: Tensor) -> Tensor:
        asked.append(x.shape[-2])
        return x.exp()

    layer, cache = layer_with(counted), hw.KVCache()
    layer(X[:, :4], cache=cache)
    asked.clear()
    layer(X[:, 4:5], cache=cache)
    assert asked == [1, 1]


def test_a_map_that_cannot_take_no_tokens() -> None:
    layer, cache = layer_with(lambda x: (x - x.max()).exp()), hw.KVCache()
    assert_same_bits(layer(X, cache=cache), layer(X))

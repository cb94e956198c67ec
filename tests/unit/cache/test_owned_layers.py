"""Calls by number beside layers that modules own, and the hint for cross attention."""

import re
from typing import Any

import pytest
import torch

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.cache_tokens import tokens


def decoder() -> tuple[hw.MultiHeadAttention, hw.KVCache, torch.Tensor]:
    torch.manual_seed(0)
    layer, cache, x = (
        hw.MultiHeadAttention(12, 3, pattern=hw.Causal()),
        hw.KVCache(),
        torch.randn(2, 4, 12),
    )
    with torch.no_grad():
        layer(x, cache=cache)
    return layer, cache, x


@pytest.mark.parametrize("call", ["attend", "append", "appended"])
def test_a_layer_of_a_module_is_not_the_default(call: str) -> None:
    layer, cache, _ = decoder()
    kept = cache.stored().key.clone()
    given: Any = layer.project(torch.randn(2, 1, 12))
    given = given if call == "attend" else given[1:]
    run = getattr(cache, call)

    def entered() -> None:
        found = run(*given)
        if call == "appended":
            found.__enter__()

    with (
        torch.no_grad(),
        pytest.raises(hw.CacheError, match=f"KVCache.{call}: layer 0 belongs to a module"),
    ):
        entered()
    assert_same_bits(cache.stored().key, kept)
    with torch.no_grad():
        cache.append(*layer.project(torch.randn(2, 1, 12))[1:], layer=0)
    assert cache.length() == 5
    del layer
    with torch.no_grad():
        cache.append(*tokens(0)[1:], layer=1)
        cache.append(*(rows[:, :, :1] for rows in cache.stored()))
    assert cache.length() == 6


def test_the_hint_for_cross_attention_is_what_to_do() -> None:
    own, cache, x = decoder()
    layer = hw.MultiHeadAttention(12, 3, kv_dim=10, softcap=4.0, sinks=True, qk_norm=True)
    memory = torch.randn(2, 7, 10)
    with pytest.raises(hw.CacheError, match="cache serves self-attention") as refused:
        layer(x, memory, cache=cache)
    said = re.search(r"once, (cache\..*), then (layer\..*)$", str(refused.value))
    assert said is not None
    names = {"cache": cache, "layer": layer, "x": x, "memory": memory, "n": 1}
    with torch.no_grad():
        eval(said[1], names)
        torch.testing.assert_close(eval(said[2], names), layer(x, memory))
        own(x, cache=cache)
    assert (cache.length(0), cache.length(1)) == (8, 7)

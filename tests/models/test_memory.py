"""Cross attention to a memory that a cache keeps, alone and in a block."""

from typing import Any

import pytest
import torch

import headwise as hw
from headwise import models
from headwise.nn.cross_attention import CrossAttention
from headwise.nn.weights import weights_of
from tests.support.own_models import tiny, tokens

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_kv_heads": 1, "kv_dim": 7, "value_dim": 3},
    "normalised": {"qk_norm": True, "softcap": 2.0, "sinks": True},
    "a mechanism": {"mechanism": hw.nn.LinearAttention("elu")},
}


@pytest.mark.parametrize("name", SETTINGS)
@torch.no_grad()
def test_steps_give_the_whole_pass(name: str) -> None:
    layer = CrossAttention(12, 2, **SETTINGS[name])
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 9, SETTINGS[name].get("kv_dim", 12))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 6:] = False
    memory[1, 6:] = 1e4
    whole = layer(x, memory, kv_mask=mask)
    cache = hw.KVCache()
    found = [
        layer(part, memory, kv_mask=mask, cache=cache, layer=3)
        for part in (x[:, :2], x[:, 2:3], x[:, 3:])
    ]
    torch.testing.assert_close(torch.cat(found, 1), whole)
    assert cache.length(3) == (0 if "mechanism" in SETTINGS[name] else 9)


@torch.no_grad()
def test_a_cache_without_tokens_reads_a_memory_anew() -> None:
    model, cache = tiny("encoder_decoder"), models.Cache()
    start = torch.ones(2, 1, dtype=torch.long)
    model(tokens(2, 9), decoder_input_ids=start, cache=cache)
    cache.crop(-1)
    other = tokens(2, 9, seed=8)
    found = model(other, decoder_input_ids=start, cache=cache).logits
    assert torch.equal(found, model(other, decoder_input_ids=start, use_cache=False).logits)


def test_the_report_counts_cross_attention() -> None:
    said = str(hw.hf.report(tiny("encoder_decoder")))
    assert "serves 6 of 6 attention modules" in said
    assert "served  2 CrossAttention (model.decoder.blocks.0.cross_attention … " in said


def test_gradients_of_the_memory_in_the_first_call() -> None:
    layer, x = CrossAttention(12, 2), torch.randn(2, 5, 12)
    gradients = []
    for named in ({}, {"cache": hw.KVCache(), "layer": 0}):
        memory = torch.ones(2, 9, 12, requires_grad=True)
        layer(x, memory, **named).square().sum().backward()
        gradients.append(memory.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.usefixtures("plain_calls")
def test_refusals() -> None:
    layer, cache = CrossAttention(12, 2), hw.KVCache()
    x, memory = torch.randn(2, 1, 12), torch.randn(2, 9, 12)
    layer(x, memory, cache=cache, layer=0)
    with pytest.raises(
        hw.CacheError, match=r"a memory of 9 tokens, .* of 8\n  hint: one cache ser"
    ):
        layer(x, memory[:, :8], cache=cache, layer=0)
    with pytest.raises(TypeError, match="with a cache it takes query, key, kv_mask and layer"):
        layer(x, memory, cache=cache, layer=0, pattern=hw.Window(1, 1))
    with pytest.raises(TypeError, match="with a cache it takes query, key, kv_mask and layer"):
        layer(x, cache=cache, layer=0)
    with pytest.raises(hw.ShapeError, match="must be \\(batch, length, width\\) of one batch"):
        layer(x[:1], memory, cache=cache, layer=0)
    plain = hw.nn.TransformerBlock(hw.MultiHeadAttention(12, 2), hw.nn.FeedForward(12))
    with pytest.raises(TypeError, match="there is nothing that reads memory_cache"):
        plain(x, memory_cache=cache)
    with pytest.raises(hw.CacheError, match="cache serves self-attention, and key was given"):
        hw.nn.TransformerBlock(
            hw.MultiHeadAttention(12, 2), hw.nn.FeedForward(12), hw.MultiHeadAttention(12, 2)
        )(x, memory, memory_cache=cache, layer=0)


class Bare:
    """A mechanism that cannot say its weights."""

    forward = state = cost = reference = lambda *_: None


@torch.no_grad()
def test_weights_that_cannot_be_had() -> None:
    x, mask = torch.randn(2, 5, 12), torch.ones(2, 5, dtype=torch.bool)
    bare: Any = Bare()
    with pytest.raises(
        NotImplementedError, match=r"Bare has no method weights\n  hint: ask for the"
    ):
        weights_of(hw.MultiHeadAttention(12, 2, mechanism=bare), x)
    learned = hw.positions.Learned(9, 12)
    with pytest.raises(NotImplementedError, match="positions follow the padding"):
        weights_of(hw.MultiHeadAttention(12, 2, positions=learned), x, kv_mask=mask)
    window = hw.KVCache(window=3)
    layer = hw.MultiHeadAttention(12, 2, pattern=hw.Causal())
    layer(x, cache=window, layer=0)
    layer(x, cache=window, layer=0)
    with pytest.raises(NotImplementedError, match="does not keep all of the 5 tokens before"):
        weights_of(layer, x, cache=window, slot=0)

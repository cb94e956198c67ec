"""More of the faults that other projects had, kinds K6, K11 and K15, on whole models."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import EncoderDecoderCache

from headwise import hf
from headwise.errors import ShapeError
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.hf_tiny import (
    DECODERS,
    PAIRS,
    answer,
    both,
    inputs,
    tiny,
    tokens,
    without_dropout,
)

FEW_HEADS: dict[str, dict[str, Any]] = {
    "longformer": {"num_attention_heads": 3},
    "big_bird": {"num_attention_heads": 3, "use_bias": False},
    "vit": {"num_attention_heads": 3, "qkv_bias": False},
    "opt": {"num_attention_heads": 3, "enable_bias": False},
    "gpt_neox": {"num_attention_heads": 3, "attention_bias": False},
    "llama": {"num_attention_heads": 3, "num_key_value_heads": 1, "attention_bias": True},
    "t5": {"num_heads": 3},
    "bart": {"encoder_attention_heads": 3, "decoder_attention_heads": 1},
    "led": {"encoder_attention_heads": 3, "decoder_attention_heads": 1},
    "whisper": {"encoder_attention_heads": 3, "decoder_attention_heads": 1},
}

ONE_LAYER: dict[str, dict[str, Any]] = {
    "gemma3": {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
}


@pytest.mark.parametrize("name", FEW_HEADS)
def test_odd_numbers_of_heads_and_no_biases(name: str) -> None:
    """K6, B48: with and without gradients."""
    ours, theirs = both(name, **FEW_HEADS[name])
    given = inputs(name)
    with torch.no_grad():
        plain, without = answer(theirs, given), answer(ours, given)
        wide = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
        exact = answer(theirs.double(), wide)
    for actual in (without, answer(ours, given)):
        assert_within_budget(actual, exact=exact, plain=plain, label=name)


@pytest.mark.parametrize("name", [n for n in (*DECODERS, *PAIRS) if n != "bigbird_pegasus"])
def test_training_and_evaluation_are_one_computation(name: str) -> None:
    """K6, B46: that of encoders stands with the other cases.

    BigBird-Pegasus draws other random blocks in training, with transformers' own attention too.
    """
    ours, given = tiny(name), inputs(name)
    with torch.no_grad():
        evaluated = answer(ours, given)
        exact = answer(tiny(name, "eager").double(), given)
    trained = answer(without_dropout(ours), given)
    assert_within_budget(trained, exact=exact, plain=evaluated, label=name)


@pytest.mark.parametrize("with_ours", [False, True])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "bloom", "t5"])
def test_cached_steps_in_float64_leave_rounding_alone(name: str, with_ours: bool) -> None:
    """K11, B84: to 1e-12 of the whole pass."""
    ours, given = tiny(name).double(), inputs(name)
    paired = name in PAIRS
    ids = given.pop("decoder_input_ids") if paired else given["input_ids"]
    with torch.no_grad():
        if paired:
            held = ours.get_encoder()(**given)
            source = {"encoder_outputs": held, "attention_mask": given["attention_mask"]}
            cache: Any = EncoderDecoderCache(hf.Cache(), hf.Cache()) if with_ours else None
            label, whole = "decoder_input_ids", ours(**source, decoder_input_ids=ids).logits
        else:
            source, label, whole = {}, "input_ids", ours(ids).logits
            cache = hf.Cache(ours.config) if with_ours else None
        parts = []
        for piece in torch.split(ids, [2, ids.shape[1] - 3, 1], 1):
            out = ours(**source, **{label: piece}, cache=cache, use_cache=True)
            cache = out.cache
            parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("keeping", ["theirs", "all", "model"])
def test_the_oldest_token_of_a_window_is_seen(keeping: str) -> None:
    """K11, B80: of the 8 that a window holds, when the eighth and when the ninth token comes."""
    ours, theirs = both("mistral", sliding_window=8)
    ids = tokens(length=10)
    kinds: dict[str, Any] = {"theirs": None, "all": {}, "model": {"window": "model"}}
    options = kinds[keeping]
    cache: Any = None if options is None else hf.Cache(ours.config, **options)
    parts = []
    with torch.no_grad():
        for piece in torch.split(ids, [6, 1, 1, 1, 1], 1):
            out = ours(piece, cache=cache, use_cache=True)
            cache = out.cache
            parts.append(out.logits)
        plain, exact = theirs(ids).logits, theirs.double()(ids).logits
    assert_within_budget(torch.cat(parts, 1), exact=exact, plain=plain, label=keeping)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "bloom"])
def test_fixed_room_is_written_over_in_place(name: str) -> None:
    """K11, B82: accepted and rejected candidates alike."""
    ours, draft = tiny(name), tiny(name, **ONE_LAYER.get(name, {"num_hidden_layers": 1}))
    given: dict[str, Any] = {"input_ids": tokens(batch=1), "do_sample": False, "pad_token_id": 0}
    given |= {"max_new_tokens": 12, "eos_token_id": None}
    wanted, places = ours.generate(**given), []
    cache: Any = hf.Cache(ours.config, capacity=32)

    def look(*_: object) -> None:
        places.append([layer.keys.data_ptr() for layer in cache.layers])

    ours.register_forward_hook(look)
    assert torch.equal(ours.generate(**given, assistant_model=draft, cache=cache), wanted)
    assert len(places) > 1
    assert all(each == places[0] for each in places)
    assert cache.get_max_length() == 32


@pytest.mark.parametrize("with_ours", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_reordering_moves_what_is_known_of_the_source(name: str, with_ours: bool) -> None:
    """K11, B88: a row goes on with its own source where the rows of a batch change places."""
    ours, theirs = both(name)
    index = torch.tensor([0, 0, 2, 5, 3, 3])
    ids, target = tokens(batch=6), tokens(batch=6, length=5, seed=4)
    seen = torch.ones_like(ids)
    seen[2, 7:] = seen[5, 9:] = 0
    cache: Any = EncoderDecoderCache(hf.Cache(), hf.Cache()) if with_ours else None
    with torch.no_grad():
        held = ours.get_encoder()(ids, attention_mask=seen)
        given = {"encoder_outputs": held, "attention_mask": seen}
        cache = ours(**given, decoder_input_ids=target[:, :3], cache=cache, use_cache=True).cache
        cache.reorder_cache(index)
        for part in ("self_attention_cache", "cross_attention_cache"):
            assert all(layer.keys.shape[0] == 6 for layer in getattr(cache, part).layers)
        held.last_hidden_state = held.last_hidden_state[index]
        given["attention_mask"] = seen[index]
        actual = ours(**given, decoder_input_ids=target[index, 3:], cache=cache).logits
        whole = {"input_ids": ids, "attention_mask": seen, "decoder_input_ids": target}
        whole = {label: rows[index] for label, rows in whole.items()}
        plain, exact = answer(theirs, whole)[:, 3:], answer(theirs.double(), whole)[:, 3:]
    assert_within_budget(actual, exact=exact, plain=plain, label=name)


def test_heads_that_no_group_divides_are_refused() -> None:
    """K15, B106."""
    model = tiny("llama", num_key_value_heads=4)
    with pytest.raises(ShapeError, match=r"6.*4"):
        model(tokens())


@pytest.mark.parametrize("extra", ["add_zero_attn", "add_bias_kv"])
def test_every_row_of_an_accelerated_layer_sees_its_extra_key(extra: str) -> None:
    """K15, B108: whether torch is told that the mask is causal or not, weights asked for or not."""
    holder = hf.accelerate(nn.ModuleList([_layer(extra)])).eval()
    x, later = torch.randn(2, 4, 6), torch.ones(4, 4).triu(1).bool()
    hinted, _ = holder[0](x, x, x, attn_mask=later, is_causal=True, need_weights=False)
    usual, weights = holder[0](x, x, x, attn_mask=later)
    torch.testing.assert_close(hinted, usual)
    assert weights.shape == (2, 4, 5)
    assert bool((weights[..., -1] > 0).all())
    wide, _ = _layer(extra).double().eval()(*[x.double()] * 3, attn_mask=later)
    plain, _ = _layer(extra).eval()(x, x, x, attn_mask=later)
    assert_within_budget(hinted, exact=wide, plain=plain, label=extra)
    padding = torch.tensor([[False] * 4, [True] * 4])
    _, weights = holder[0](x, x, x, key_padding_mask=padding)
    assert_same_bits(weights[1], (torch.arange(5) == 4).float().expand(4, 5))


def _layer(extra: str) -> nn.MultiheadAttention:
    torch.manual_seed(2)
    options: dict[str, Any] = {extra: True}
    return nn.MultiheadAttention(6, 3, batch_first=True, **options)

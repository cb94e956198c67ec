"""Text comes out token for token as with transformers' own attention."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import EncoderDecoderCache, StaticCache
from transformers.cache_utils import StaticLayer

from headwise import hf
from tests.support.hf_tiny import DECODERS, PAIRS, both, inputs, padded, tiny, tokens

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beam": {"num_beams": 3},
    "sampling": {"do_sample": True, "top_k": 8, "temperature": 0.7},
    "static": {"cache_implementation": "static"},
    "no cache": {"use_cache": False},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name: str, kind: str) -> None:
    ours, theirs = both(name)
    given = {"input_ids": tokens(), "attention_mask": padded("left")}
    assert torch.equal(_written(ours, given, **KINDS[kind]), _written(theirs, given, **KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*PAIRS, "whisper"])
def test_encoder_decoders(name: str, kind: str) -> None:
    ours, theirs = both(name)
    given = inputs(name, "right")
    given.pop("decoder_input_ids")
    assert torch.equal(_written(ours, given, **KINDS[kind]), _written(theirs, given, **KINDS[kind]))


@pytest.mark.parametrize("kind", ["greedy", "beam", "sampling"])
@pytest.mark.parametrize("capacity", [None, 40])
@pytest.mark.parametrize("name", DECODERS)
def test_decoders_with_our_cache(name: str, capacity: int | None, kind: str) -> None:
    ours, theirs = both(name)
    given = {"input_ids": tokens(), "attention_mask": padded("left")}
    cache = hf.Cache(ours.config, capacity=capacity)
    actual = _written(ours, given, cache=cache, **KINDS[kind])
    assert torch.equal(actual, _written(theirs, given, **KINDS[kind]))
    assert cache.get_seq_length() == actual.shape[1] - 1


@pytest.mark.parametrize("kind", ["greedy", "beam"])
@pytest.mark.parametrize("name", [*PAIRS, "whisper"])
def test_encoder_decoders_with_our_cache(name: str, kind: str) -> None:
    ours, theirs = both(name)
    given = inputs(name, "right")
    given.pop("decoder_input_ids")
    cache = EncoderDecoderCache(hf.Cache(), hf.Cache())
    actual = _written(ours, given, cache=cache, **KINDS[kind])
    assert torch.equal(actual, _written(theirs, given, **KINDS[kind]))


@pytest.mark.parametrize("with_ours", [False, True])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "bloom"])
def test_assisted_decoding(name: str, with_ours: bool) -> None:
    ours, theirs = both(name)
    draft = tiny(name, num_hidden_layers=1)
    given = {"input_ids": tokens(batch=1), "attention_mask": padded("none", batch=1)}
    extra = {"cache": hf.Cache(ours.config)} if with_ours else {}
    actual = _written(ours, given, assistant_model=draft, max_new_tokens=12, **extra)
    assert torch.equal(actual, _written(theirs, given, max_new_tokens=12))


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_unfilled_room_of_a_static_cache_is_not_seen(name: str) -> None:
    ours, _ = both(name)
    ids = tokens(batch=1, length=5)
    cache = StaticCache(config=ours.config, max_cache_len=8)
    with torch.no_grad():
        ours(ids[:, :2], cache=cache)
        for layer in cache.layers:
            assert isinstance(layer, StaticLayer)
            assert layer.keys is not None
            assert layer.values is not None
            layer.keys[:, :, 2:] = layer.values[:, :, 2:] = float("nan")
        steps = [ours(ids[:, at : at + 1], cache=cache).logits for at in (2, 3)]
        whole = ours(ids[:, :4]).logits
    assert torch.cat(steps, 1).isfinite().all()
    assert torch.equal(torch.cat(steps, 1).argmax(-1), whole[:, 2:].argmax(-1))


def _written(model: Any, given: dict[str, Tensor], **options: Any) -> Tensor:
    torch.manual_seed(11)
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, **options}
    written: Tensor = model.generate(**given, pad_token_id=0, **options)
    return written

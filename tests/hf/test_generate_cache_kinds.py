"""Every kind of cache writes what transformers' own cache writes, token for token."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

import headwise as hw
from headwise import hf
from headwise.hf.layer_reading import LayerReading
from headwise.ops import StoredKeys, tally
from tests.support.hf_tiny import FAMILIES, PAIRS, Family, both, inputs, padded, tiny, tokens

# Five sliding layers, then one that sees everything.
GEMMA3 = Family(
    "Gemma3TextConfig",
    "AutoModelForCausalLM",
    {**FAMILIES["gemma2"].numbers, "num_hidden_layers": 6, "attn_logit_softcapping": None},
)
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True, "top_k": 8, "temperature": 0.7},
}
SAME: dict[str, Callable[[Any], hf.Cache]] = {
    "growing": hf.Cache,
    "fixed": lambda config: hf.Cache(config, capacity=40),
    "paged": lambda config: hf.Cache(config, pool=hw.PagePool()),
    "window of the model": lambda config: hf.Cache(config, window="model"),
}


@pytest.fixture(autouse=True)
def _with_gemma3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "gemma3", GEMMA3)


class Rounded(DynamicCache):
    """transformers' own cache over rows that 8 bits and a scale per token and head can hold."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        key, value = self.rounded(key_states), self.rounded(value_states)
        return super().update(key, value, *args, **kwargs)

    def rounded(self, rows: Tensor) -> Tensor:
        scale = rows.abs().amax(-1, keepdim=True) / 127
        return (rows / scale.where(scale > 0, 1.0)).round() * scale


class Halved(Rounded):
    """The same over rows of bfloat16."""

    def rounded(self, rows: Tensor) -> Tensor:
        return rows.bfloat16().to(rows.dtype)


def _int8(config: Any) -> hf.Cache:
    return hf.Cache(config, dtype=torch.int8)


def _given(batch: int = 2) -> dict[str, Tensor]:
    side = "left" if batch > 1 else "none"
    return {"input_ids": tokens(batch=batch), "attention_mask": padded(side, batch=batch)}


def _written(model: Any, given: dict[str, Tensor], **options: Any) -> Tensor:
    torch.manual_seed(11)
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, **options}
    written: Tensor = model.generate(**given, pad_token_id=0, **options)
    return written


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", SAME)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gemma3"])
def test_decoders(name: str, kind: str, search: str) -> None:
    ours, theirs = both(name)
    options, cache = SEARCHES[search], SAME[kind](ours.config)
    expected = _written(theirs, _given(), cache=DynamicCache(config=theirs.config), **options)
    assert torch.equal(_written(ours, _given(), cache=cache, **options), expected)
    assert cache.get_seq_length() == expected.shape[1] - 1


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_decoders_with_fewer_bits(name: str, search: str) -> None:
    ours, theirs = both(name)
    for dtype, own in ((torch.int8, Rounded()), (torch.bfloat16, Halved())):
        expected = _written(theirs, _given(), cache=own, **SEARCHES[search])
        cache = hf.Cache(ours.config, dtype=dtype)
        assert torch.equal(_written(ours, _given(), cache=cache, **SEARCHES[search]), expected)


@pytest.mark.parametrize("search", ["greedy", "beams"])
@pytest.mark.parametrize("kind", ["growing", "fixed", "paged"])
@pytest.mark.parametrize("name", [*PAIRS, "whisper"])
def test_encoder_decoders(name: str, kind: str, search: str) -> None:
    ours, theirs = both(name)
    given = _without_start(name)
    cache = EncoderDecoderCache(SAME[kind](ours.config), SAME[kind](ours.config))
    actual = _written(ours, given, cache=cache, **SEARCHES[search])
    assert torch.equal(actual, _written(theirs, given, **SEARCHES[search]))


@pytest.mark.parametrize("search", ["greedy", "beams"])
@pytest.mark.parametrize("name", ["t5", "bart", "whisper"])
def test_encoder_decoders_with_8_bits(name: str, search: str) -> None:
    ours, theirs = both(name)
    given = _without_start(name)
    cache = EncoderDecoderCache(_int8(ours.config), _int8(ours.config))
    actual = _written(ours, given, cache=cache, **SEARCHES[search])
    rounded = EncoderDecoderCache(Rounded(), Rounded())
    assert torch.equal(actual, _written(theirs, given, cache=rounded, **SEARCHES[search]))


@pytest.mark.parametrize("how", ["prompt lookup", "draft model"])
@pytest.mark.parametrize("kind", [*SAME, "int8"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_assisted_decoding(name: str, kind: str, how: str) -> None:
    ours, theirs = both(name)
    given = {"input_ids": tokens(batch=1, length=5).repeat(1, 3)}
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    if how == "prompt lookup":
        helped: dict[str, Any] = {"prompt_lookup_num_tokens": 3}
    else:
        helped = {"assistant_model": tiny(name, num_hidden_layers=1)}
    own = Rounded() if kind == "int8" else DynamicCache(config=theirs.config)
    cache = (SAME | {"int8": _int8})[kind](ours.config)
    actual = _written(ours, given, cache=cache, max_new_tokens=12, **helped)
    assert torch.equal(actual, _written(theirs, given, cache=own, max_new_tokens=12))


@pytest.mark.parametrize("kind", ["growing", "int8"])
def test_assisted_decoding_of_an_encoder_decoder(kind: str) -> None:
    ours, theirs = both("bart")
    given = {"input_ids": tokens(batch=1), "attention_mask": padded("none", batch=1)}
    build = (SAME | {"int8": _int8})[kind]
    cache = EncoderDecoderCache(build(ours.config), build(ours.config))
    actual = _written(ours, given, cache=cache, prompt_lookup_num_tokens=3, max_new_tokens=12)
    own = EncoderDecoderCache(Rounded(), Rounded()) if kind == "int8" else None
    assert torch.equal(actual, _written(theirs, given, cache=own, max_new_tokens=12))


@pytest.mark.parametrize("kind", [*SAME, "int8"])
def test_a_prompt_is_read_once_for_several_calls(kind: str) -> None:
    ours, theirs = both("mistral")
    cache = (SAME | {"int8": _int8})[kind](ours.config)
    own = Rounded() if kind == "int8" else DynamicCache(config=theirs.config)
    for _ in range(2):
        given = {"input_ids": tokens(batch=1)}
        for _ in range(2):
            grown = _written(theirs, given, cache=own)
            assert torch.equal(_written(ours, given, cache=cache), grown)
            given = {"input_ids": torch.cat([grown, tokens(batch=1, length=3, seed=8)], 1)}
        cache.reset()
        own = type(own)()


@pytest.mark.parametrize("name", ["llama", "bart"])
@pytest.mark.parametrize("kind", ["paged", "int8"])
def test_what_is_stored_is_read_in_place(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tiny(name)
    build = (SAME | {"int8": _int8})[kind]
    cache: Any = build(ours.config)
    if name == "bart":
        cache = EncoderDecoderCache(cache, build(ours.config))
    with monkeypatch.context() as patched, tally() as ran:
        patched.setattr(LayerReading, "_gathered", _refuse)
        patched.setattr(StoredKeys, "dense", _refuse)
        _written(ours, _given(), cache=cache, num_beams=3)
    assert set(ran) == {"native"}


def _refuse(*_: object) -> None:
    raise AssertionError("the stored tokens were copied")


def _without_start(name: str) -> dict[str, Tensor]:
    given = inputs(name, "right")
    given.pop("decoder_input_ids")
    return given

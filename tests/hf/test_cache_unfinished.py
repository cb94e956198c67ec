"""A pass that fails is taken back before anything else is done to the cache."""

import copy
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import EncoderDecoderCache

import headwise as hw
from headwise import hf
from tests.support.hf_tiny import FAMILIES, Family, inputs, tiny, tokens

# Three layers that see five tokens, then one that sees everything.
HYBRID = Family(
    "Gemma3TextConfig",
    "AutoModelForCausalLM",
    {
        **FAMILIES["gemma2"].numbers,
        "num_hidden_layers": 4,
        "sliding_window": 5,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "attn_logit_softcapping": None,
    },
)
LONG = 30


def _cropped(cache: Any) -> Any:
    cache.crop(0)
    return cache


def _reordered(cache: Any) -> Any:
    cache.reorder_cache(torch.tensor([0, 1]))
    return cache


def _repeated(cache: Any) -> Any:
    cache.batch_repeat_interleave(1)
    return cache


def _chosen(cache: Any) -> Any:
    cache.batch_select_indices(torch.tensor([0, 1]))
    return cache


CHANGES = [copy.deepcopy, hf.Cache.fork, _cropped, _reordered, _repeated, _chosen]
KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "windows": lambda: {"window": "model"},
    "windows of 8 bits": lambda: {"window": "model", "dtype": torch.int8},
    "pages": lambda: {"pool": hw.PagePool()},
}


@pytest.fixture
def hybrid(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(FAMILIES, "gemma3", HYBRID)
    return tiny("gemma3")


def _fail(*_: Any) -> None:
    raise KeyboardInterrupt


def _fails(model: Any, part: torch.nn.Module, ids: Tensor, cache: Any) -> None:
    hook = part.register_forward_pre_hook(_fail)
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        model(ids, cache=cache)
    hook.remove()


def _pass(model: Any, ids: Tensor, cache: Any) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(ids, cache=cache).logits
    return logits


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("old", [0, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_comes_next_takes_it_back(
    hybrid: Any, kind: str, old: int, change: Callable[[Any], Any]
) -> None:
    ids = tokens(length=old + LONG)
    cache, fresh = (hf.Cache(hybrid.config, **KINDS[kind]()) for _ in range(2))
    for each in (cache, fresh):
        if old:
            _pass(hybrid, ids[:, :old], each)
    _fails(hybrid, hybrid.model.layers[2].mlp, ids[:, old:], cache)
    changed = change(cache)
    assert changed.get_seq_length() == old
    expected = _pass(hybrid, ids[:, old:], fresh)
    assert torch.equal(_pass(hybrid, ids[:, old:], changed), expected)
    # The one that was copied goes on too.
    if changed is not cache:
        assert torch.equal(_pass(hybrid, ids[:, old:], cache), expected)


def test_a_crop_counts_from_the_last_finished_pass(hybrid: Any) -> None:
    ids = tokens(length=10 + LONG)
    cache, fresh = (hf.Cache(hybrid.config, window="model") for _ in range(2))
    for each in (cache, fresh):
        _pass(hybrid, ids[:, :10], each)
    _fails(hybrid, hybrid.model.layers[2].mlp, ids[:, 10:], cache)
    for each in (cache, fresh):
        each.crop(-3)
        assert each.get_seq_length() == 7
    again, expected = (_pass(hybrid, ids[:, 7:], each) for each in (cache, fresh))
    assert torch.equal(again, expected)


def test_a_copy_leaves_a_running_pass_alone(hybrid: Any) -> None:
    ids = tokens(length=10 + LONG)
    cache, fresh = (hf.Cache(hybrid.config, window="model") for _ in range(2))
    for each in (cache, fresh):
        _pass(hybrid, ids[:, :10], each)
    copies: list[Any] = []
    hook = hybrid.model.layers[2].mlp.register_forward_pre_hook(
        lambda *_: copies.append(copy.deepcopy(cache))
    )
    running = _pass(hybrid, ids[:, 10:], cache)
    hook.remove()
    expected = _pass(hybrid, ids[:, 10:], fresh)
    assert torch.equal(running, expected)
    assert torch.equal(_pass(hybrid, ids[:, 10:], copies[0]), expected)


def test_after_the_last_layer_a_crop_takes_it_back(hybrid: Any) -> None:
    ids = tokens(length=18)
    cache, fresh = (hf.Cache(hybrid.config, window="model") for _ in range(2))
    for each in (cache, fresh):
        _pass(hybrid, ids[:, :10], each)
    length = cache.get_seq_length()
    _fails(hybrid, hybrid.model.layers[-1].mlp, ids[:, 10:], cache)
    assert cache.get_seq_length() == 18
    cache.crop(length - cache.get_seq_length())
    again, expected = (_pass(hybrid, ids[:, 10:], each) for each in (cache, fresh))
    assert torch.equal(again, expected)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_crop_leaves_the_memory_of_an_encoder_alone(name: str) -> None:
    model, given = tiny(name), inputs(name)
    written = given.pop("decoder_input_ids")
    config = model.config
    cache = EncoderDecoderCache(hf.Cache(config), hf.Cache(config))
    memory: Any = cache.cross_attention_cache
    with torch.no_grad():
        whole = model(**given, decoder_input_ids=written, cache=cache).logits
        held = [(layer.keys.clone(), layer.values.clone()) for layer in memory.layers]
        cache.crop(-2)
        assert (cache.get_seq_length(), memory.get_seq_length()) == (3, given["input_ids"].shape[1])
        for layer, (keys, values) in zip(memory.layers, held, strict=True):
            assert torch.equal(layer.keys, keys)
            assert torch.equal(layer.values, values)
        again = model(**given, decoder_input_ids=written[:, 3:], cache=cache).logits
    torch.testing.assert_close(again, whole[:, 3:])


@pytest.mark.parametrize("change", [copy.deepcopy, _reordered, _repeated, _cropped])
def test_half_the_memory_of_an_encoder_is_kept(change: Callable[[Any], Any]) -> None:
    model, given = tiny("bart"), inputs("bart")
    config = model.config
    cache = EncoderDecoderCache(hf.Cache(config), hf.Cache(config))
    hook = model.model.decoder.layers[1].register_forward_pre_hook(_fail)
    with torch.no_grad():
        with pytest.raises(KeyboardInterrupt):
            model(**given, cache=cache)
        hook.remove()
        cache = change(cache)
        assert torch.equal(model(**given, cache=cache).logits, model(**given).logits)


def test_threads_write_from_one_pool() -> None:
    model, pool = tiny("llama"), hw.PagePool()
    prompts = [tokens(seed=seed) for seed in range(4)]
    wanted = [_written(model, ids, hf.Cache()) for ids in prompts]

    def run(ids: Tensor) -> list[Tensor]:
        return [_written(model, ids, hf.Cache(pool=pool)) for _ in range(8)]

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(run, prompts))
    finally:
        sys.setswitchinterval(usual)
    for many, expected in zip(found, wanted, strict=True):
        for one in many:
            assert torch.equal(one, expected)


def _written(model: Any, ids: Tensor, cache: Any) -> Tensor:
    written: Tensor = model.generate(ids, cache=cache, max_new_tokens=2, do_sample=False)
    return written

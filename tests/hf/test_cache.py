"""The cache keeps what transformers' own keeps, and takes back what it should."""

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache, Qwen3NextConfig

from headwise import hf
from headwise.errors import CacheError
from tests.support.hf_tiny import tiny, tokens


def _filled(length: int = 3, layers: int = 2, batch: int = 2) -> Any:
    cache = hf.Cache()
    for layer in range(layers):
        cache.update(*torch.randn(2, batch, 2, length, 4), layer)
    return cache


def test_it_is_a_dynamic_cache() -> None:
    assert isinstance(hf.Cache(), DynamicCache)
    assert hf.Cache().get_seq_length() == 0
    assert not hf.Cache().is_compileable


@pytest.mark.parametrize(("removed", "left"), [(0, 3), (-1, 2), (-3, 0), (-5, 0)])
def test_crop_takes_back_tokens(removed: int, left: int) -> None:
    cache = _filled()
    before = [cache.layers[layer].keys.clone() for layer in (0, 1)]
    cache.crop(removed)
    assert [cache.get_seq_length(layer) for layer in (0, 1)] == [left, left]
    for layer in (0, 1):
        new = torch.randn(2, 2, 2, 1, 4)
        keys, _ = cache.update(*new, layer)
        assert torch.equal(keys, torch.cat([before[layer][:, :, :left], new[0]], 2))


def test_crop_refuses_a_length() -> None:
    cache = _filled()
    with pytest.raises(CacheError, match=r"crop\(-2\) takes back two tokens"):
        cache.crop(2)
    assert cache.get_seq_length() == 3


def test_reordering_moves_every_layer() -> None:
    cache = _filled(batch=6)
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    index = torch.tensor([0, 0, 2, 5, 3, 3])
    cache.reorder_cache(index)
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys[index])
        assert torch.equal(layer.values, values[index])


def test_samples_are_repeated_and_chosen() -> None:
    cache = _filled()
    keys = cache.layers[1].keys.clone()
    cache.batch_repeat_interleave(2)
    assert torch.equal(cache.layers[1].keys, keys.repeat_interleave(2, 0))
    cache.batch_select_indices(torch.tensor([3, 0]))
    assert torch.equal(cache.layers[1].keys, keys[[1, 0]])


def test_tokens_are_not_copied_as_they_come() -> None:
    cache = _filled()
    first = cache.layers[0].keys.data_ptr()
    for _ in range(20):
        keys, _ = cache.update(*torch.randn(2, 2, 2, 1, 4), 0)
        cache.update(*torch.randn(2, 2, 2, 1, 4), 1)
    assert keys.data_ptr() == first
    assert keys.shape[2] == 23


def test_a_refused_update_changes_nothing() -> None:
    cache = _filled()
    with pytest.raises(CacheError):
        cache.update(*torch.randn(2, 3, 2, 1, 4), 0)
    assert [cache.get_seq_length(layer) for layer in (0, 1)] == [3, 3]


@pytest.mark.parametrize("first", [True, False])
def test_a_pass_that_fails_half_way_leaves_nothing_behind(first: bool) -> None:
    model = tiny("llama")
    cache = hf.Cache(model.config)
    ids, old = tokens(), 0 if first else 5
    with torch.no_grad():
        if old:
            model(ids[:, :old], cache=cache)
        last = model.model.layers[-1]
        hook = last.register_forward_pre_hook(_fail)
        with pytest.raises(KeyboardInterrupt):
            model(ids[:, old:], cache=cache)
        hook.remove()
        assert cache.get_seq_length() == old
        again = model(ids[:, old:], cache=cache).logits
        whole = model(ids).logits[:, old:]
    assert cache.get_seq_length() == ids.shape[1]
    assert torch.equal(again.argmax(-1), whole.argmax(-1))


def _fail(*_: Any) -> None:
    raise KeyboardInterrupt


def test_reset_and_copies() -> None:
    cache = _filled()
    other = copy.deepcopy(cache)
    cache.reset()
    assert cache.get_seq_length() == 0
    assert cache.layers[0].keys is None
    cache.update(*torch.randn(2, 5, 2, 1, 4), 0)
    assert other.get_seq_length() == 3
    assert torch.equal(other.layers[0].keys, other.store.stored(0).key)


def test_layers_answer_but_do_not_change_alone() -> None:
    cache = _filled()
    assert cache.layers[0].get_seq_length() == 3
    assert cache.layers[0].get_mask_sizes(2) == (5, 0)
    with pytest.raises(CacheError, match="crop works on all layers at once, got layer 1"):
        cache.layers[1].crop(-1)


def test_layers_that_are_no_attention_are_refused() -> None:
    config = Qwen3NextConfig(num_hidden_layers=2, layer_types=["linear_attention"] * 2)
    with pytest.raises(CacheError, match="got linear_attention"):
        hf.Cache(config)


def test_samples_that_there_are_not() -> None:
    cache = _filled()
    with pytest.raises(CacheError, match=r"indices must name samples 0 to 1, got \[2\]"):
        cache.batch_select_indices(torch.tensor([2]))
    assert cache.layers[0].keys.shape[0] == 2


def test_a_model_is_no_configuration() -> None:
    with pytest.raises(TypeError, match=r"config must be a configuration, got Linear"):
        hf.Cache(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["crop", "reorder", "reset"])
def test_a_failure_in_one_store_changes_none(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("gemma2").config.get_text_config()
    cache = hf.Cache(config, window="model")
    for layer in range(config.num_hidden_layers):
        cache.update(*torch.randn(2, 2, 1, 3, 8), layer)
    stores = list(cache.stores)
    assert len(stores) > 1

    def failing(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stores[-1], call, failing)
    calls = {
        "crop": lambda: cache.crop(-1),
        "reorder": lambda: cache.reorder_cache(torch.tensor([0])),
        "reset": cache.reset,
    }
    with pytest.raises(KeyboardInterrupt):
        calls[call]()
    for layer in range(config.num_hidden_layers):
        assert cache.stores.of(layer).lengths(layer).tolist() == [3, 3]

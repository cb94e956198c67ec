"""What transformers does to a cache, on those of 8 bits, of pages, and of other dtypes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise import hf
from headwise.errors import CacheError
from tests.support.budget import assert_same_bits
from tests.support.hf_tiny import tiny, tokens

KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "int8": lambda: {"dtype": torch.int8},
    "bfloat16": lambda: {"dtype": torch.bfloat16},
    "paged": lambda: {"pool": hw.PagePool()},
    "paged int8": lambda: {"pool": hw.PagePool(), "dtype": torch.int8},
    "fixed int8": lambda: {"capacity": 9, "dtype": torch.int8},
}


@pytest.fixture(params=KINDS)
def cache(request: pytest.FixtureRequest) -> Any:
    """Two layers of three samples, five tokens each."""
    torch.manual_seed(3)
    made = hf.Cache(**KINDS[request.param]())
    for layer in range(2):
        made.update(*torch.randn(2, 3, 2, 5, 8), layer)
    return made


def _held(cache: Any) -> list[Tensor]:
    return [tensor.clone() for layer in cache.layers for tensor in (layer.keys, layer.values)]


def _assert_held(cache: Any, expected: list[Tensor]) -> None:
    for found, wanted in zip(_held(cache), expected, strict=True):
        assert_same_bits(found, wanted)


@pytest.mark.parametrize(("removed", "left"), [(0, 5), (-2, 3), (-5, 0), (-7, 0)])
def test_crop_takes_back_tokens(cache: Any, removed: int, left: int) -> None:
    before = _held(cache)
    cache.crop(removed)
    assert [cache.get_seq_length(layer) for layer in (0, 1)] == [left, left]
    new = torch.randn(2, 3, 2, 1, 8)
    for layer in (0, 1):
        cache.update(*new, layer)
    _assert_held(_without_last(cache), [tensor[:, :, :left] for tensor in before] if left else [])


def _without_last(cache: Any) -> Any:
    cache.crop(-1)
    return cache if cache.get_seq_length() else hf.Cache()


def test_samples_are_reordered(cache: Any) -> None:
    before, index = _held(cache), torch.tensor([2, 2, 0])
    cache.reorder_cache(index)
    _assert_held(cache, [tensor[index] for tensor in before])


def test_samples_are_repeated_and_chosen(cache: Any) -> None:
    before = _held(cache)
    if cache.get_max_length() > 0:
        with pytest.raises(CacheError, match="with a fixed capacity the batch stays 3 samples"):
            cache.batch_repeat_interleave(2)
        _assert_held(cache, before)
        return
    cache.batch_repeat_interleave(2)
    _assert_held(cache, [tensor.repeat_interleave(2, 0) for tensor in before])
    cache.batch_select_indices(torch.tensor([5, 0]))
    _assert_held(cache, [tensor[[2, 0]] for tensor in before])


@pytest.mark.parametrize("twin", [copy.deepcopy, hf.Cache.fork])
def test_a_copy_is_independent(cache: Any, twin: Callable[[hf.Cache], hf.Cache]) -> None:
    before = _held(cache)
    other = twin(cache)
    for layer in (0, 1):
        other.update(*torch.randn(2, 3, 2, 1, 8), layer)
    assert (cache.get_seq_length(), other.get_seq_length()) == (5, 6)
    _assert_held(cache, before)
    cache.reset()
    assert (cache.get_seq_length(), other.get_seq_length()) == (0, 6)
    other.crop(-1)
    _assert_held(other, before)


def test_reset_takes_other_tokens(cache: Any) -> None:
    cache.reset()
    assert cache.get_seq_length() == 0
    assert not cache.layers[0].is_initialized
    cache.update(*torch.randn(2, 3, 2, 4, 8), 0)
    assert cache.layers[0].keys.shape == (3, 2, 4, 8)


def test_8_bits_take_a_byte_and_a_share_of_the_scale() -> None:
    sizes = []
    for options in ({}, KINDS["int8"]()):
        cache = hf.Cache(**options)
        cache.update(*torch.randn(2, 1, 2, 64, 64), 0)
        sizes.append(cache.nbytes)
    assert sizes[1] * (64 * 4) == sizes[0] * (64 + 4)


@pytest.mark.parametrize("kind", ["int8", "paged"])
def test_a_pass_that_fails_half_way_leaves_nothing_behind(kind: str) -> None:
    model, ids = tiny("llama"), tokens()
    cache = hf.Cache(model.config, **KINDS[kind]())
    with torch.no_grad():
        model(ids[:, :5], cache=cache)
        untouched = copy.deepcopy(cache)
        hook = model.model.layers[0].mlp.register_forward_pre_hook(_fail)
        with pytest.raises(KeyboardInterrupt):
            model(ids[:, 5:], cache=cache)
        hook.remove()
        assert cache.get_seq_length() == 5
        again, wanted = (model(ids[:, 5:], cache=each).logits for each in (cache, untouched))
    assert torch.equal(again, wanted)


def _fail(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_cache_in_pages_gives_them_back() -> None:
    pool = hw.PagePool(2)
    for _ in range(3):
        cache = hf.Cache(pool=pool)
        cache.update(*torch.randn(2, 1, 2, 130, 8), 0)
        assert cache.get_seq_length() == 130
        cache.reset()

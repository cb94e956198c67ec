"""A cache that keeps the last tokens of every layer, or those its sliding layers see."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from headwise import hf
from headwise.errors import CacheError
from tests.support.budget import assert_within_budget
from tests.support.hf_tiny import padded, tiny, tokens

LENGTH = 11


def _logits(model: Any, cache: Any, ids: Tensor, cuts: list[int], mask: Tensor) -> Tensor:
    """Return the logits of passes that end before each cut, and at the end."""
    edges = [0, *cuts, ids.shape[1]]
    parts = []
    with torch.no_grad():
        for start, end in pairwise(edges):
            found = model(ids[:, start:end], attention_mask=mask[:, :end], cache=cache)
            parts.append(found.logits)
    return torch.cat(parts, 1)


def _whole(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of one pass without a cache, in float32 and in float64."""
    with torch.no_grad():
        return tuple(
            copy.deepcopy(model).to(kind)(ids, attention_mask=mask, use_cache=False).logits
            for kind in (torch.float32, torch.float64)
        )


CUTS: dict[str, list[int]] = {
    "at once": [],
    "one by one": list(range(1, LENGTH)),
    "prompt and steps": [7, 8, 9, 10],
    "chunks": [3, 8],
}


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("side", ["none", "left"])
def test_a_window_is_that_of_a_sliding_model(cuts: str, side: str) -> None:
    full = tiny("mistral", sliding_window=None)
    sliding = tiny("mistral", "sdpa", sliding_window=3)
    ids, mask = tokens(), padded(side)
    cache = hf.Cache(full.config, window=3, rollback=1)
    found = _logits(full, cache, ids, CUTS[cuts], mask)
    real = mask.bool()
    plain, exact = (each[real] for each in _whole(sliding, ids, mask))
    assert_within_budget(found[real], exact=exact, plain=plain, label=cuts)
    assert cache.get_seq_length() == LENGTH


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", ["mistral", "gemma2", "llama4", "gpt_oss"])
def test_layers_keep_what_they_see(name: str, cuts: str) -> None:
    ours, theirs = tiny(name), tiny(name, "sdpa" if name == "llama4" else "eager")
    ids, mask = tokens(), padded("none")
    cache = hf.Cache(ours.config, window="model", rollback=1)
    found = _logits(ours, cache, ids, CUTS[cuts], mask)
    plain, exact = _whole(theirs, ids, mask)
    assert_within_budget(found, exact=exact, plain=plain, label=cuts)


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("name", ["mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("window", ["model", 30])
def test_other_attention_reads_what_a_sliding_layer_keeps(
    window: Any, name: str, cuts: str
) -> None:
    theirs, ids, mask = tiny(name, "eager"), tokens(), padded("left")
    cache = hf.Cache(theirs.config, window=window, rollback=1)
    found = _logits(theirs, cache, ids, CUTS[cuts], mask)
    expected = _logits(theirs, DynamicCache(config=theirs.config), ids, CUTS[cuts], mask)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("cuts", CUTS)
def test_the_attention_may_be_another_than_the_configuration_says(cuts: str) -> None:
    ours, theirs = tiny("mistral"), tiny("mistral", "sdpa")
    ids, mask = tokens(), padded("left")
    cache = hf.Cache(theirs.config, window="model", rollback=1)
    found = _logits(ours, cache, ids, CUTS[cuts], mask)[mask.bool()]
    plain, exact = (each[mask.bool()] for each in _whole(theirs, ids, mask))
    assert_within_budget(found, exact=exact, plain=plain, label=cuts)


@pytest.mark.parametrize("cuts", CUTS)
def test_first_tokens_are_kept(cuts: str) -> None:
    ours, theirs = tiny("llama"), tiny("llama", "sdpa")
    ids = tokens()
    cache = hf.Cache(ours.config, window=3, keep_first=2, rollback=1)
    found = _logits(ours, cache, ids, CUTS[cuts], padded("none"))
    query, key = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    seen = (key <= query) & ((key > query - 3) | (key < 2))
    plain, exact = _whole(theirs, ids, seen.expand(2, 1, LENGTH, LENGTH))
    assert_within_budget(found, exact=exact, plain=plain, label=cuts)


def test_the_room_of_a_window_does_not_grow() -> None:
    model = tiny("llama")
    cache = hf.Cache(model.config, window=4, rollback=2)
    sizes = []
    with torch.no_grad():
        for _ in range(5):
            model(tokens(length=10), cache=cache)
            sizes.append(cache.nbytes)
    assert len(set(sizes)) == 1
    assert cache.get_seq_length() == 50


def test_a_window_gives_back_what_rollback_says() -> None:
    model = tiny("mistral", sliding_window=None)
    cache = hf.Cache(model.config, window=4, rollback=2)
    ids = tokens(batch=1)
    with torch.no_grad():
        model(ids[:, :9], cache=cache)
        cache.crop(-2)
        found = model(ids[:, 7:], cache=cache).logits
        model(ids, cache=cache)
        with pytest.raises(CacheError, match="rollback"):
            cache.crop(-3)
    assert cache.get_seq_length() == 22
    sliding = tiny("mistral", "sdpa", sliding_window=4)
    plain, exact = (each[:, 7:] for each in _whole(sliding, ids, padded("none", batch=1)))
    assert_within_budget(found, exact=exact, plain=plain, label="after a crop")


@pytest.mark.parametrize("old", [0, 3, 9])
@pytest.mark.parametrize("new", [1, 8])
def test_a_pass_that_fails_half_way_leaves_nothing_behind(old: int, new: int) -> None:
    model = tiny("gemma2")
    cache = hf.Cache(model.config, window="model", rollback=2)
    ids = tokens(length=17)
    with torch.no_grad():
        if old:
            model(ids[:, :old], cache=cache)
        untouched = copy.deepcopy(cache)
        hook = model.model.layers[-1].register_forward_pre_hook(_fail)
        with pytest.raises(KeyboardInterrupt):
            model(ids[:, old : old + new], cache=cache)
        hook.remove()
        assert cache.get_seq_length() == old
        again, expected = (model(ids[:, old:], cache=each).logits for each in (cache, untouched))
    assert torch.equal(again, expected)
    assert cache.get_seq_length() == ids.shape[1]


def _fail(*_: Any) -> None:
    raise KeyboardInterrupt


def test_other_attention_reads_a_window_until_tokens_are_dropped() -> None:
    theirs = tiny("llama", "sdpa")
    cache = hf.Cache(theirs.config, window=6)
    ids = tokens()
    with torch.no_grad():
        found = theirs(ids[:, :6], cache=cache).logits
        assert torch.equal(found, theirs(ids[:, :6], cache=DynamicCache()).logits)
        with pytest.raises(
            CacheError, match="a window of 6 tokens is kept by headwise's attention"
        ):
            theirs(ids[:, 6:], cache=cache)


def test_windows_that_say_nothing_are_refused() -> None:
    config = tiny("gemma2").config
    unknown: Any = "all"
    with pytest.raises(CacheError, match="a number of tokens or 'model', got 'all'"):
        hf.Cache(config, window=unknown)
    with pytest.raises(CacheError, match="needs the configuration of the model, got none"):
        hf.Cache(window="model")
    with pytest.raises(CacheError, match="keep_first goes with a window in tokens, got 2"):
        hf.Cache(config, window="model", keep_first=2)
    with pytest.raises(CacheError, match="window"):
        hf.Cache(config, window=0)

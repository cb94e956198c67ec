"""Generation: with a cache as without, in every way of searching; what caches are taken."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise import models
from tests.support.own_models import DECODERS, PAIRS, tiny, tokens

GREEDY: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}


def padded() -> dict[str, Tensor]:
    ids = tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True, "top_k": 9},
    "several": {"do_sample": True, "num_return_sequences": 2},
}


def generated(model: Any, **asked: Any) -> Tensor:
    torch.manual_seed(11)
    found: Tensor = model.generate(**{**GREEDY, **asked})
    return found


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "greedy") for name in DECODERS),
        *((name, way) for name in ("longformer", "mixed") for way in WAYS if way != "greedy"),
    ],
)
def test_with_a_cache_as_without(name: str, way: str) -> None:
    model = tiny(**DECODERS[name])
    cached = generated(model, **padded(), **WAYS[way])
    assert torch.equal(cached, generated(model, **padded(), **WAYS[way], use_cache=False))


@pytest.mark.parametrize(
    ("name", "way"), [*((name, "greedy") for name in PAIRS), ("softmax", "beams")]
)
def test_pairs_with_a_cache_as_without(name: str, way: str) -> None:
    model = tiny("encoder_decoder", **PAIRS[name])
    cached = generated(model, **padded(), **WAYS[way])
    assert torch.equal(cached, generated(model, **padded(), **WAYS[way], use_cache=False))


@pytest.mark.parametrize("name", DECODERS)
def test_padding_in_front_changes_nothing(name: str) -> None:
    model = tiny(**DECODERS[name])
    asked = padded()
    both, alone = generated(model, **asked), generated(model, input_ids=asked["input_ids"][1:, 3:])
    assert torch.equal(both[1, 9 : 9 + alone.shape[1] - 6], alone[0, 6:])


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_assisted_is_greedy(kind: str) -> None:
    model, small = tiny(kind), tiny(kind, seed=8, num_layers=1)
    ids = tokens(1, 9)
    wanted = generated(model, input_ids=ids)
    assert torch.equal(generated(model, input_ids=ids, assistant_model=small), wanted)
    if kind == "decoder":
        assert torch.equal(generated(model, input_ids=ids, prompt_lookup_num_tokens=3), wanted)


def test_a_state_cannot_be_rolled_back() -> None:
    model = tiny(**DECODERS["linear"])
    with pytest.raises(ValueError, match="requires a cache that can be cropped"):
        generated(model, input_ids=tokens(1, 9), prompt_lookup_num_tokens=3)


@torch.no_grad()
@pytest.mark.parametrize("name", DECODERS)
def test_steps_give_the_logits_of_one_pass(name: str) -> None:
    model = tiny(**DECODERS[name])
    asked = padded()
    ids, mask = asked.values()
    whole = model(ids, attention_mask=mask, use_cache=False).logits
    cache = models.Cache()
    found = []
    for start, end in ((0, 5), (5, 6), (6, 9)):
        out = model(ids[:, start:end], attention_mask=mask[:, :end], cache=cache)
        found.append(out.logits)
    assert out.cache is cache
    assert cache.get_seq_length() == 9
    real = mask.bool()
    torch.testing.assert_close(torch.cat(found, 1)[real], whole[real], rtol=0, atol=2e-4)


@torch.no_grad()
def test_a_memory_is_projected_once_and_must_stay() -> None:
    model = tiny("encoder_decoder")
    seen = []
    cross = model.model.decoder.blocks[0].cross_attention
    cross.W_k.register_forward_hook(lambda *_: seen.append(1))
    generated(model, input_ids=tokens(2, 9), min_new_tokens=5)
    assert len(seen) == 1
    cache = models.Cache()
    start = torch.ones(2, 1, dtype=torch.long)
    model(tokens(2, 9), decoder_input_ids=start, cache=cache)
    with pytest.raises(hw.CacheError, match="keeps a memory of 9 tokens, and the call brings one"):
        model(tokens(2, 8), decoder_input_ids=start, cache=cache)
    assert cache.get_seq_length() == 1


STORES: dict[str, dict[str, Any]] = {
    "fixed": {"capacity": 20},
    "window that holds all": {"window": 32},
    "pages": {"pool": hw.PagePool()},
    "float64": {"dtype": torch.float64},
}


@pytest.mark.parametrize("name", STORES)
def test_stores_of_every_kind(name: str) -> None:
    model = tiny()
    wanted = generated(model, **padded())
    cache = models.Cache(hw.KVCache(**STORES[name]))
    assert torch.equal(generated(model, **padded(), cache=cache), wanted)
    assert cache.nbytes > 0


@torch.no_grad()
def test_8_bits_are_near_and_a_window_is_the_pattern() -> None:
    model, ids = tiny(), tokens(2, 9)
    out = {
        name: model(ids, cache=models.Cache(hw.KVCache(dtype=dtype))).logits
        for name, dtype in {"plain": None, "int8": torch.int8}.items()
    }
    assert 0 < (out["int8"] - out["plain"]).abs().max() < 0.1 * out["plain"].abs().max()
    windowed = generated(model, input_ids=ids, cache=models.Cache(hw.KVCache(window=4)))
    assert torch.equal(windowed, generated(tiny(pattern=hw.Window(3, 0)), input_ids=ids))


def test_a_text_goes_on_with_its_cache() -> None:
    model, ids = tiny(), tokens(1, 9)
    cache = models.Cache()
    first = generated(model, input_ids=ids, cache=cache, min_new_tokens=5)
    fork = copy.deepcopy(cache)
    asked = {"input_ids": first, "attention_mask": torch.ones_like(first)}
    wanted = generated(model, **asked)
    assert torch.equal(generated(model, **asked, cache=cache), wanted)
    assert torch.equal(generated(model, **asked, cache=fork), wanted)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "hf.Cache": (
        {"cache": hw.hf.Cache()},
        "cache must be a headwise.models.Cache, got Cache\n  hint: leave cache out, or say how",
    ),
    "a name": (
        {"cache_implementation": "static"},
        "cache_implementation='static' names a cache of transformers, and the layers of these "
        "models store in a headwise.KVCache\n  hint: cache=headwise.models.Cache(",
    ),
    "a state in 8 bits": (
        {"cache": models.Cache(hw.KVCache(dtype=torch.int8))},
        "dtype=torch.int8 of the cache is about keys and values, and the mechanism LinearAtt",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_caches_that_are_refused(name: str) -> None:
    asked, says = REFUSED[name]
    with pytest.raises(hw.CacheError) as refused:
        generated(tiny(**DECODERS["linear"]), input_ids=tokens(1, 5), **asked)
    assert says in str(refused.value)


@pytest.mark.usefixtures("plain_calls")
def test_what_the_cache_refuses() -> None:
    with pytest.raises(TypeError, match=r"store must be a headwise\.KVCache, got dict\n  hint: "):
        models.Cache({})  # type: ignore[arg-type]
    with pytest.raises(hw.CacheError, match="given as a negative int, got 2"):
        models.Cache().crop(2)
    key = torch.zeros(1, 2, 3, 4)
    with pytest.raises(hw.CacheError, match=r"there is headwise\.hf\.Cache"):
        models.Cache().update(key, key, 0)


@torch.no_grad()
@pytest.mark.parametrize("name", ["rotary", "linear"])
def test_a_failed_pass_leaves_the_cache_as_it_was(name: str) -> None:
    model, ids = tiny(**DECODERS[name]), tokens(1, 9)
    cache = models.Cache()
    model(ids[:, :5], cache=cache)
    last = model.model.decoder.blocks[1].feed_forward
    hook = last.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(ids[:, 5:], cache=cache)
    hook.remove()
    assert [cache.get_seq_length(layer) for layer in (0, 1)] == [5, 5]
    found = model(ids[:, 5:], cache=cache).logits
    torch.testing.assert_close(found, model(ids).logits[:, 5:], rtol=0, atol=2e-4)


@torch.no_grad()
def test_positions_go_on_where_the_cache_ends() -> None:
    model, ids = tiny(), tokens(1, 9)
    cache = models.Cache()
    model(ids[:, :5], cache=cache)
    with pytest.raises(hw.PatternError, match="must go on where its tokens end, at 5, got 0"):
        model(ids[:, 5:], cache=cache, position_ids=torch.arange(4)[None])
    assert cache.get_seq_length() == 5
    model(ids[:, 5:], cache=cache, position_ids=torch.arange(5, 9)[None])


@torch.no_grad()
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_positions_that_were_moved_go_on(positions: str) -> None:
    model = tiny(positions=positions, pattern="window(9, 0) | global(4)")
    ids, moved = tokens(2, 9), torch.stack((torch.arange(9), torch.arange(9) + 3))
    whole = model(ids, position_ids=moved, use_cache=False).logits
    cache = models.Cache()
    model(ids[:, :5], cache=cache, position_ids=moved[:, :5])
    cache.reorder_cache(torch.tensor([1, 0]))
    found = model(ids[[1, 0], 5:], cache=copy.deepcopy(cache)).logits
    torch.testing.assert_close(found, whole[[1, 0], 5:], rtol=0, atol=2e-4)
    asked = model(ids[[1, 0], 5:], cache=cache, position_ids=moved[[1, 0], 5:]).logits
    assert torch.equal(asked, found)


def test_padding_inside_a_prompt_counts() -> None:
    """A prompt with a hole is continued as the model itself reads it."""
    model, ids = tiny(positions="learned"), tokens(1, 9)
    mask = torch.ones_like(ids)
    mask[0, 4] = 0
    cached = generated(model, input_ids=ids, attention_mask=mask)
    assert torch.equal(
        cached, generated(model, input_ids=ids, attention_mask=mask, use_cache=False)
    )
    assert model(ids, attention_mask=mask).logits[0, -1].argmax() == cached[0, 9]


@torch.no_grad()
def test_weights_with_a_cache() -> None:
    model, asked = tiny(), padded()
    ids, mask = asked.values()
    whole = model(ids, attention_mask=mask, output_attentions=True, use_cache=False).attentions
    cache = models.Cache()
    model(ids[:, :5], attention_mask=mask[:, :5], cache=cache)
    step = model(ids[:, 5:], attention_mask=mask, cache=cache, output_attentions=True).attentions
    for found, wanted in zip(step, whole, strict=True):
        torch.testing.assert_close(found, wanted[:, :, 5:], rtol=0, atol=2e-5)
    linear = tiny(**DECODERS["linear"])
    cache = models.Cache()
    linear(ids[:, :5], cache=cache, output_attentions=True)
    with pytest.raises(NotImplementedError, match="cache does not keep all of the 5 tokens before"):
        linear(ids[:, 5:], cache=cache, output_attentions=True)


def test_logits_to_keep() -> None:
    model, ids = tiny(), tokens()
    whole = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, whole[:, -2:])
    torch.testing.assert_close(
        model(ids, logits_to_keep=torch.tensor([0, 3])).logits, whole[:, [0, 3]]
    )
    with pytest.raises(TypeError, match="labels are of all places"):
        model(ids, labels=ids, logits_to_keep=1)


def test_training_makes_no_cache() -> None:
    model = tiny().train()
    assert model(tokens()).cache is None
    model.activation_checkpointing_enable()
    with pytest.raises(hw.CacheError, match="a block that is run twice would append its tokens tw"):
        model(tokens(), use_cache=True)
    assert model.eval()(tokens()).cache.get_seq_length() == 11

"""Bloom's attention after ``accelerate``: its masks, its biases and its caches."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import StaticCache

from headwise import hf
from headwise.hf.accelerated import given_mask
from headwise.hf.accelerated.bloom import FastBloomAttention
from headwise.hf.pattern_mask import PatternMask
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.hf_tiny import answer, both, padded, tiny, tokens, without_dropout

FEW = torch.finfo(torch.float32).min


def _causal(side: str, q_len: int, kv_len: int, first: int) -> Tensor:
    """Return who may attend to whom, with ``first`` tokens before the queries."""
    real = torch.ones(2, kv_len, dtype=torch.bool)
    real[1, :2] = side != "left"
    if side == "right":
        real[1, first + q_len - 2 :] = False
    return torch.ones(q_len, kv_len, dtype=torch.bool).tril(first) & real[:, None, None]


# Queries, keys, and tokens before the queries.
CALLS = [(7, 7, 0), (4, 9, 5), (5, 12, 2), (1, 6, 5)]


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize(("q_len", "kv_len", "first"), CALLS)
def test_usual_masks_are_recognised(side: str, q_len: int, kv_len: int, first: int) -> None:
    allowed = _causal(side, q_len, kv_len, first)
    numbers = torch.zeros(allowed.shape).masked_fill(~allowed, FEW)
    found = given_mask.read_mask(numbers, torch.float32)
    if isinstance(found, PatternMask):
        assert torch.equal(found.spelled(), allowed)
        assert "Dense" not in repr(found)
    else:
        # Room left behind a sample that ends early: nothing tells where the queries stand.
        assert (side, kv_len) == ("right", 12)


def test_other_masks_are_left_as_they_are() -> None:
    allowed = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    allowed[0, 0, 3, 1] = False
    holed = torch.zeros(allowed.shape).masked_fill(~allowed, FEW)
    slightly = torch.zeros(1, 1, 5, 5).masked_fill(~allowed, -10_000.0)
    per_head = holed.expand(1, 2, 5, 5)
    for mask in (holed, slightly, per_head):
        assert given_mask.read_mask(mask, torch.float32) is mask


def test_a_mask_is_read_once_until_it_changes() -> None:
    numbers = torch.zeros(2, 1, 5, 5).masked_fill(~_causal("none", 5, 5, 0), FEW)
    first = given_mask.read_mask(numbers, torch.float32)
    assert given_mask.read_mask(numbers, torch.float32) is first
    numbers.zero_()
    second: Any = given_mask.read_mask(numbers, torch.float32)
    assert second is not first
    assert bool(second.spelled().all())


def test_any_mask_of_numbers_counts() -> None:
    """A layer called by itself with a mask full of holes, and with one of mild numbers."""
    ours, theirs = (model.transformer for model in both("bloom"))
    hidden, alibi = torch.randn(2, 5, 24), torch.randn(12, 1, 5)
    for weight in (FEW, -1.5):
        mask = torch.zeros(2, 1, 5, 5).masked_fill(torch.rand(2, 1, 5, 5) < 0.4, weight)
        mask.diagonal(dim1=-2, dim2=-1).zero_()
        given = (hidden, hidden, alibi, mask)
        actual, plain = (model.h[0].self_attention(*given)[0] for model in (ours, theirs))
        wide = tuple(t.double() for t in (hidden, hidden, alibi)), mask.double()
        exact = tiny("bloom", "eager").double().transformer.h[0].self_attention(*wide[0], wide[1])
        assert_within_budget(actual, exact=exact[0], plain=plain, label=str(weight))


def test_a_mask_of_booleans_is_added_as_transformers_adds_it() -> None:
    ours, theirs = (model.transformer.h[0].self_attention for model in both("bloom"))
    hidden, mask = torch.randn(2, 5, 24), torch.ones(5, 5).tril().bool().expand(2, 1, 5, 5)
    given = (hidden, hidden, torch.randn(12, 1, 5), mask)
    torch.testing.assert_close(ours(*given)[0], theirs(*given)[0])


def test_both_chances_of_dropout_are_kept() -> None:
    layer = without_dropout(tiny("bloom")).transformer.h[0].self_attention
    hidden, mask = torch.randn(2, 5, 24), torch.zeros(2, 1, 5, 5)
    given = (hidden, hidden, torch.randn(12, 1, 5), mask)
    whole = layer(*given)[0]
    layer.hidden_dropout = 0.5
    torch.manual_seed(3)
    dropped = layer(*given)[0] - hidden
    gone = dropped == 0
    assert 0.3 < float(gone.float().mean()) < 0.7
    torch.testing.assert_close(dropped[~gone], 2 * (whole - hidden)[~gone])
    layer.hidden_dropout, layer.attention_dropout.p = 0.0, 1.0
    torch.testing.assert_close(layer(*given)[0], (hidden + layer.dense.bias).expand(2, 5, 24))


def test_what_repeats_a_rounding_is_left() -> None:
    model = tiny("bloom", "eager", pretraining_tp=2, slow_but_exact=True)
    hf.accelerate(model)
    assert not any(isinstance(part, FastBloomAttention) for part in model.modules())
    attention = model.transformer.h[0].self_attention
    assert "pretraining_tp machines" in str(FastBloomAttention.refusal(attention))


@pytest.mark.parametrize("keep", [0, 2])
def test_a_window_of_a_cache_holds_the_last_tokens(keep: int) -> None:
    """With one layer, what a step sees is what the model sees of those tokens alone."""
    ours = tiny("bloom", n_layer=1)
    ids, cache = tokens(length=20), hf.Cache(ours.config, window=8, keep_first=keep)
    with torch.no_grad():
        ours(ids[:, :11], cache=cache)
        for at in range(11, 20):
            actual = ours(ids[:, at : at + 1], cache=cache).logits[:, -1]
            seen = torch.zeros(2, at + 1, dtype=torch.long)
            seen[:, at - 7 :] = seen[:, :keep] = 1
            plain = _step(tiny("bloom", "eager", n_layer=1), ids[:, : at + 1], seen)
            wide = tiny("bloom", "eager", n_layer=1).double()
            exact = _step(wide, ids[:, : at + 1], seen)
            assert_within_budget(actual, exact=exact, plain=plain, label=str(at))


def test_unfilled_room_of_a_static_cache_is_not_seen() -> None:
    ours, ids = tiny("bloom"), tokens(batch=1, length=5)
    cache: Any = StaticCache(config=ours.config, max_cache_len=8)
    with torch.no_grad():
        ours(ids[:, :2], cache=cache)
        for layer in cache.layers:
            layer.keys[:, :, 2:] = layer.values[:, :, 2:] = float("nan")
        steps = [ours(ids[:, at : at + 1], cache=cache).logits for at in (2, 3, 4)]
        whole = ours(ids).logits
        exact = ours.double()(ids).logits
    actual = torch.cat(steps, 1)
    assert_within_budget(actual, exact=exact[:, 2:], plain=whole[:, 2:], label="static")


def test_gradients_are_the_same_with_checkpoints() -> None:
    given, found = {"input_ids": tokens(), "attention_mask": padded("right")}, []
    for checkpoints in (False, True):
        model = without_dropout(tiny("bloom"))
        if checkpoints:
            model.activation_checkpointing_enable()
        loss: Any = answer(model, given).square().mean()
        loss.backward()
        found.append([weight.grad for weight in model.parameters()])
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(plain, again)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # its GELU
def test_a_compiled_model_answers_alike() -> None:
    ours, given = tiny("bloom"), {"input_ids": tokens(), "attention_mask": padded("left")}
    with torch.no_grad():
        compiled = answer(torch.compile(ours, backend="eager"), given)
        assert_same_bits(compiled, answer(ours, given))
    torch._dynamo.reset()


def test_biases_count_from_the_first_real_token() -> None:
    """Left padding moves no position of a real token (K12)."""
    ours, ids, seen = tiny("bloom"), tokens(), padded("left")
    with torch.no_grad():
        actual = ours(ids, attention_mask=seen).logits[1, 4:]
        plain = ours(ids[1:, 4:]).logits[0]
        exact = tiny("bloom", "eager").double()(ids[1:, 4:]).logits[0]
    assert_within_budget(actual, exact=exact, plain=plain, label="left")


def _step(model: Any, ids: Tensor, seen: Tensor) -> Tensor:
    """Return the last logits where the first layer counts all tokens and sees some of them."""
    inner = model.transformer
    embedded = inner.word_embeddings_layernorm(inner.word_embeddings(ids))
    alibi = inner.build_alibi_tensor(torch.ones_like(seen), inner.num_heads, embedded.dtype)
    mask = torch.zeros(seen.shape).masked_fill(seen == 0, -1e9)[:, None, None]
    hidden = inner.h[0](embedded, alibi, mask.to(embedded.dtype))[0][:, -1]
    found: Tensor = model.lm_head(inner.ln_f(hidden))
    return found

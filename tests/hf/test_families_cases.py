"""Faults that other projects had, as kinds K6, K11, K12 and K15 of cases, on whole models."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import hf
from tests.support.budget import assert_within_budget
from tests.support.hf_tiny import (
    DECODERS,
    ENCODERS,
    PAIRS,
    answer,
    both,
    inputs,
    padded,
    tiny,
    tokens,
    without_dropout,
)

HOLES = {
    "leading": [0, 0, 1, 1, 1, 1],
    "middle": [1, 1, 0, 0, 1, 1],
    "trailing": [1, 1, 1, 1, 0, 0],
    "all": [0, 0, 0, 0, 0, 0],
}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("holes", HOLES)
def test_training_and_evaluation_are_one_computation(name: str, holes: str) -> None:
    """K6, B46: wherever the padding is."""
    ours = tiny(name)
    seen = torch.tensor([[1] * 6, HOLES[holes]])
    given = {"input_ids": tokens(length=6), "attention_mask": seen}
    with torch.no_grad():
        evaluated = answer(ours, given)
        exact = answer(tiny(name).double(), given)
    trained = answer(without_dropout(ours), given)
    assert evaluated.isfinite().all()
    real = seen.bool()
    assert_within_budget(trained[real], exact=exact[real], plain=evaluated[real], label=holes)


@pytest.mark.parametrize(("name", "heads"), [("bert", 3), ("mpnet", 3), ("gpt2", 3), ("bloom", 3)])
def test_odd_numbers_of_heads(name: str, heads: int) -> None:
    """K6, B48: with and without gradients."""
    label = "num_attention_heads" if name in ENCODERS else "n_head"
    ours, theirs = both(name, **{label: heads})
    given = inputs(name)
    with torch.no_grad():
        plain, without = answer(theirs, given), answer(ours, given)
        exact = answer(theirs.double(), given)
    for actual in (without, answer(ours, given)):
        assert_within_budget(actual, exact=exact, plain=plain, label=name)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"scale_attn_weights": False}),
        ("gemma3", {"query_pre_attn_scalar": 37}),
    ],
)
def test_the_scale_is_the_one_of_the_model(name: str, changes: dict[str, Any]) -> None:
    """K6, B50."""
    ours, theirs = both(name, **changes)
    given = inputs(name)
    with torch.no_grad():
        actual, plain = answer(ours, given), answer(theirs, given)
        exact = answer(theirs.double(), given)
    assert_within_budget(actual, exact=exact, plain=plain, label=str(changes))


@pytest.mark.parametrize("sizes", [[1] * 9, [2, 2, 2, 2, 1], [5, 4]])
@pytest.mark.parametrize("with_ours", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_cached_steps_are_the_whole_pass(name: str, with_ours: bool, sizes: list[int]) -> None:
    """K11, B84."""
    ours, theirs = both(name)
    ids = tokens(length=9, seed=4)
    with torch.no_grad():
        actual = _in_pieces(ours, ids, sizes, hf.Cache(ours.config) if with_ours else None)
        plain = _in_pieces(theirs, ids, sizes, None)
        exact = theirs.double()(ids).logits
    assert_within_budget(actual, exact=exact, plain=plain, label=name)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("name", PAIRS)
def test_cached_steps_of_a_decoder_with_a_source(name: str, size: int) -> None:
    """K11, B84, and K12, B94: relative biases count from the cached tokens."""
    ours, theirs = both(name)
    given = inputs(name, "right")
    target = given.pop("decoder_input_ids")
    source = {"attention_mask": given["attention_mask"]}
    cache, parts = None, []
    with torch.no_grad():
        encoded = ours.get_encoder()(**given)
        for piece in torch.split(target, size, 1):
            now = {"encoder_outputs": encoded, "decoder_input_ids": piece, **source}
            out = ours(**now, cache=cache, use_cache=True)
            cache = out.cache
            parts.append(out.logits)
        whole = {**given, "decoder_input_ids": target}
        plain, exact = answer(theirs, whole), answer(theirs.double(), whole)
    assert_within_budget(torch.cat(parts, 1), exact=exact, plain=plain, label=name)


@pytest.mark.parametrize("with_ours", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_reordered_and_cropped_caches(name: str, with_ours: bool) -> None:
    """K11, B78 and B88: the rows that an index names go on, without their last tokens.

    transformers' own cache is not cropped: its sliding layers have dropped what that needs.
    """
    ours, ids = tiny(name), tokens(batch=3, length=9)
    index = torch.tensor([2, 0, 0])
    cache: Any = hf.Cache(ours.config) if with_ours else None
    with torch.no_grad():
        cache = ours(ids[:, :6], cache=cache, use_cache=True).cache
        cache.reorder_cache(index)
        if with_ours:
            cache.crop(-2)
        at = 4 if with_ours else 6
        last = ours(ids[index, at:], cache=cache).logits
        plain = ours(ids[index]).logits[:, at:]
        exact = tiny(name, "eager").double()(ids[index]).logits[:, at:]
    assert_within_budget(last, exact=exact, plain=plain, label=name)


@pytest.mark.parametrize("name", DECODERS)
def test_padding_on_the_left_moves_no_position(name: str) -> None:
    """K12, B92: where the model takes positions, they count real tokens."""
    ours, ids, seen = tiny(name), tokens(), padded("left")
    given = {"input_ids": ids, "attention_mask": seen}
    if name not in ("bloom", "opt"):
        given["position_ids"] = (seen.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        actual = answer(ours, given)[1, -1]
        plain = ours(ids[1:, 4:]).logits[0, -1]
        exact = tiny(name, "eager").double()(ids[1:, 4:]).logits[0, -1]
    assert_within_budget(actual, exact=exact, plain=plain, label=name)


def test_cross_attention_of_t5_has_no_bias() -> None:
    """K12, B96: without content every source token weighs the same."""
    ours = tiny("t5")
    given = {**inputs("t5"), "input_ids": tokens(length=3)}
    given["attention_mask"] = torch.ones(2, 3, dtype=torch.long)
    for block in ours.decoder.block:
        block.layer[1].EncDecAttention.q.weight.data.zero_()
    for weights in ours(**given, output_attentions=True).cross_attentions:
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / 3))


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("name", ["llama", "qwen3", "phi"])
def test_query_heads_stand_beside_their_group(name: str, groups: int) -> None:
    """K15, B106: values of head 1 and above are ones, those of head 0 zeros."""
    ours = tiny(name, num_key_value_heads=groups)
    layer = ours.model.layers[0].self_attn
    layer.v_proj.weight.data.zero_()
    layer.v_proj.bias = torch.nn.Parameter((torch.arange(groups * 4) >= 4).float())
    found: list[Tensor] = []
    output = layer.dense if hasattr(layer, "dense") else layer.o_proj
    output.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    ours(tokens())
    wanted = (torch.arange(24) >= 24 // groups).float().expand(2, 11, 24)
    torch.testing.assert_close(found[0], wanted)


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_gradients_of_grouped_heads_are_sums(groups: int) -> None:
    """K15, B106."""
    ours, theirs = (without_dropout(m) for m in both("llama", num_key_value_heads=groups))
    given, wide = inputs("llama"), tiny("llama", "eager", num_key_value_heads=groups).double()
    label = "model.layers.0.self_attn.k_proj.weight"
    actual, plain, exact = (_gradient(m, label, given) for m in (ours, theirs, wide))
    assert_within_budget(actual, exact=exact, plain=plain, label=label)


def _in_pieces(model: Any, ids: Tensor, sizes: list[int], cache: Any) -> Tensor:
    parts = []
    for piece in torch.split(ids, sizes, 1):
        out = model(piece, cache=cache, use_cache=True)
        cache = out.cache
        parts.append(out.logits)
    return torch.cat(parts, 1)


def _gradient(model: Any, label: str, given: dict[str, Tensor]) -> Tensor:
    loss = answer(model, given).square().mean()
    found: Tensor = torch.autograd.grad(loss, model.get_parameter(label))[0]
    return found

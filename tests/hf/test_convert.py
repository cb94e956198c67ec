"""convert: every family attends by what it was given, padded or not, and learns so."""

from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise import hf
from tests.support.budget import assert_within_budget
from tests.support.hf_spelled import spelled
from tests.support.hf_tiny import (
    DECODERS,
    FAMILIES,
    answer,
    at_real_tokens,
    inputs,
    padded,
    tiny,
    tokens,
    without_dropout,
)

SERVED = [name for name, family in FAMILIES.items() if family.through == "headwise"]
NEAR = hw.Window(2, 1) | hw.GlobalTokens([1, 4])
PATTERNS = {"near": NEAR, "blocks": hw.patterns.bigbird(2), "stride": hw.Strided(3)}
MECHANISMS: dict[str, Any] = {
    "elu": hw.nn.LinearAttention("elu"),
    "random": hw.nn.RandomFeatures(7, 4, seed=3),
    "low rank": hw.nn.LowRank(4, 64, "heads"),
    "means": hw.nn.LowRank(16, 32, projection="mean"),
}


@pytest.mark.parametrize("name", SERVED)
def test_patterns_are_joined_with_the_masks_of_the_model(name: str) -> None:
    given, model = _padded(name), hf.convert(tiny(name), NEAR)
    actual = _answer(model, given, name)
    _check(actual, spelled(name, NEAR), given, name)
    assert not torch.allclose(actual, _answer(hf.convert(model, None), given, name), atol=1e-3)


@pytest.mark.parametrize("name", ["roberta", "llama", "bart", "t5", "gpt_oss"])
@pytest.mark.parametrize("pattern", ["blocks", "stride"])
def test_other_patterns(name: str, pattern: str) -> None:
    given, chosen = _padded(name), PATTERNS[pattern]
    actual = _answer(hf.convert(tiny(name), chosen), given, name)
    _check(actual, spelled(name, chosen), given, name)


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        *((name, "elu") for name in ("bert", "splinter", "clip_vision", "gpt2", "qwen3", "bart")),
        *((name, "random") for name in ("electra", "gpt_neox", "whisper")),
        *((name, "low rank") for name in ("roberta", "distilbert", "vit")),
        ("bert", "means"),
    ],
)
def test_mechanisms_compute_their_definition(name: str, mechanism: str) -> None:
    given, made = _padded(name), MECHANISMS[mechanism]
    actual = _answer(hf.convert(tiny(name), made), given, name)
    _check(actual, spelled(name, made), given, name)


@pytest.mark.parametrize("name", ["gpt2", "gemma3"])
def test_the_scale_of_the_model_is_kept(name: str) -> None:
    changes: Any = {"scale_attn_weights": False} if name == "gpt2" else {"query_pre_attn_scalar": 9}
    layers = None if name == "gpt2" else [1]
    made = hw.nn.RandomFeatures(20_000, 4, seed=1)
    model = tiny(name, **changes)
    for module in model.modules():
        if hasattr(module, "weight") and module.weight.ndim > 1:
            module.weight.data *= 0.5
    found, wanted = [], answer(model, {"input_ids": tokens()})
    for factor in (1.0, 0.0):
        hf.convert(model, made if factor else hw.nn.LinearAttention(torch.exp), layers=layers)
        found.append((answer(model, {"input_ids": tokens()}) - wanted).norm() / wanted.norm())
    assert found[0] < 0.05 < found[1]


@pytest.mark.parametrize("name", ["bert", "llama", "bart", "gemma2"])
def test_gradients(name: str) -> None:
    given = _padded(name)
    actual = _gradients(without_dropout(hf.convert(tiny(name), NEAR)), given, name)
    theirs = without_dropout(spelled(name, NEAR))
    plain = _gradients(theirs, given, name)
    exact = _gradients(theirs.double(), given, name)
    assert actual.keys() == exact.keys()
    for label, found in actual.items():
        assert_within_budget(found, exact=exact[label], plain=plain[label], label=label)


@pytest.mark.parametrize("layers", [[0], [3], [1, 2]])
def test_some_layers_of_a_pair(layers: list[int]) -> None:
    """The decoder is counted after the encoder, cross attention is not."""
    given = _padded("bart")
    actual = _answer(hf.convert(tiny("bart"), NEAR, layers=layers), given, "bart")
    _check(actual, spelled("bart", NEAR, layers), given, "bart")


def test_a_function_chooses_for_each_layer() -> None:
    model = hf.convert(tiny("bert"), lambda layer: None if layer else hw.Window(2, 1))
    assert [row.reason for row in hf.report(model)] == [
        "converted to Window(left=2, right=1, dilation=1)",
        "",
    ]
    seeds = hf.convert(model, lambda layer: hw.nn.RandomFeatures(8, seed=layer))
    assert [row.reason for row in hf.report(seeds)] == [
        f"converted to RandomFeatures(8, head_dim=4, orthogonal=True, seed={seed})"
        for seed in (0, 1)
    ]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("mechanism", [NEAR, *MECHANISMS.values()], ids=str)
def test_padding_reaches_nothing(side: str, mechanism: Any) -> None:
    model = hf.convert(tiny("bert"), mechanism)
    embedded = model.get_input_embeddings()(tokens()).detach()
    seen = padded(side)
    given = {"inputs_embeds": embedded, "attention_mask": seen}
    wanted = answer(model, given)[seen.bool()]
    embedded = embedded.masked_fill(~seen.bool().unsqueeze(-1), float("nan"))
    found = answer(model, {**given, "inputs_embeds": embedded})[seen.bool()]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "with_ours"),
    [
        *((name, True) for name in DECODERS if name in SERVED),
        *((name, False) for name in ("gpt2", "llama", "mistral", "gemma2", "llama4")),
    ],
)
def test_cached_steps_of_patterns(name: str, with_ours: bool) -> None:
    _check_steps(name, NEAR, None, with_ours)


@pytest.mark.parametrize(
    ("name", "with_ours"),
    [
        *((name, False) for name in ("gpt2", "opt", "llama", "qwen3", "gemma3")),
        *((name, True) for name in ("gpt_neox", "phi", "qwen2", "gemma3")),
    ],
)
def test_cached_steps_of_linear_attention(name: str, with_ours: bool) -> None:
    faded = hw.nn.LinearAttention("elu", decay=0.9)
    _check_steps(name, faded, [1] if name == "gemma3" else None, with_ours)


def _check_steps(name: str, mechanism: Any, layers: list[int] | None, with_ours: bool) -> None:
    model = hf.convert(tiny(name), mechanism, layers=layers)
    ids = tokens(length=9, seed=4)
    cache: Any = hf.Cache(model.config) if with_ours else None
    parts = []
    with torch.no_grad():
        for piece in torch.split(ids, [4, 1, 2, 1, 1], 1):
            out = model(piece, cache=cache, use_cache=True)
            cache = out.cache
            parts.append(out.logits)
        whole = model(ids).logits
        exact = model.double()(ids).logits
    assert_within_budget(torch.cat(parts, 1), exact=exact, plain=whole, label=name)


@pytest.mark.parametrize("cache", ["static", "8 bits", "window", "dynamic"])
def test_generation(cache: str) -> None:
    model = hf.convert(tiny("llama"), hw.Window(2, 0) | hw.GlobalTokens(5))
    given: Any = {"input_ids": tokens(), "attention_mask": padded("left")}
    settings: Any = {"max_new_tokens": 5, "do_sample": False}
    wanted = model.generate(**given, **settings, use_cache=False)
    kept: Any = {
        "static": {"cache_implementation": "static"},
        "8 bits": {"cache": hf.Cache(dtype=torch.int8)},
        "window": {"cache": hf.Cache(window=16)},
        "dynamic": {},
    }
    torch.testing.assert_close(model.generate(**given, **settings, **kept[cache]), wanted)
    hf.convert(model, MECHANISMS["elu"])
    if cache in ("static", "dynamic"):
        wanted = model.generate(**given, **settings, use_cache=False)
        torch.testing.assert_close(model.generate(**given, **settings, **kept[cache]), wanted)


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_room_of_a_static_cache_is_no_part_of_a_text(name: str) -> None:
    """The last block and the random ones are counted from the last token."""
    model = hf.convert(tiny(name), hw.patterns.bigbird(4, 3, 1, 1))
    given: Any = {"input_ids": tokens(length=13)}
    settings: Any = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    wanted = model.generate(**given, **settings, use_cache=False)
    found = model.generate(**given, **settings, cache_implementation="static")
    torch.testing.assert_close(found, wanted)


def test_a_pair_generates() -> None:
    model = hf.convert(tiny("bart"), NEAR)
    given: Any = {"input_ids": tokens(), "attention_mask": padded("right")}
    settings: Any = {"max_new_tokens": 5, "num_beams": 2, "do_sample": False}
    wanted = model.generate(**given, **settings, use_cache=False)
    cache = transformers_pair(hf.Cache(), hf.Cache())
    for kept in ({}, {"cache": cache}):
        torch.testing.assert_close(model.generate(**given, **settings, **kept), wanted)


def transformers_pair(*caches: Any) -> Any:
    from transformers import EncoderDecoderCache

    return EncoderDecoderCache(*caches)


def _padded(name: str) -> dict[str, Tensor]:
    return inputs(name, "left" if name in DECODERS else "right")


def _check(actual: Tensor, theirs: Any, given: dict[str, Tensor], name: str) -> None:
    plain = _answer(theirs, given, name)
    exact = _answer(theirs.double(), given, name)
    assert_within_budget(actual, exact=exact, plain=plain, label=name)


def _answer(model: Any, given: dict[str, Tensor], name: str) -> Tensor:
    dtype = next(model.parameters()).dtype
    given = {key: t.to(dtype) if t.is_floating_point() else t for key, t in given.items()}
    with torch.no_grad():
        return at_real_tokens(answer(model, given), given, name)


def _gradients(model: Any, given: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    found = at_real_tokens(answer(model, given), given, name)
    names, weights = zip(*model.named_parameters(), strict=True)
    grads = torch.autograd.grad(found.square().mean(), weights, allow_unused=True)
    return {name: g for name, g in zip(names, grads, strict=True) if g is not None}

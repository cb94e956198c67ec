"""The configuration: what goes through JSON and back, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from transformers import AutoConfig, BertConfig

import headwise as hw
from headwise import models
from tests.support.own_models import config

PRESETS: dict[str, dict[str, Any]] = {
    "bert": {},
    "gpt": {},
    "llama": {},
    "encoder_decoder": {"decoder_start_token_id": 3},
    "longformer": {"window": 64, "global_tokens": (0, 3)},
    "bigbird": {"block": 16, "seed": 5},
    "linformer": {"rank": 32, "share": "kv"},
    "performer": {"count": 64, "kind": "decoder"},
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_go_through_a_folder_and_back(name: str, tmp_path: Path) -> None:
    made = getattr(models, name)(num_layers=3, d_model=24, num_heads=4, **PRESETS[name])
    made.save_pretrained(tmp_path)
    models.register()
    found = AutoConfig.from_pretrained(tmp_path)
    assert type(found) is models.HeadwiseConfig
    for field in ("kind", "pattern", "mechanism", "positions", "num_layers", "is_encoder_decoder"):
        assert getattr(found, field) == getattr(made, field)
    assert found.attention_of("decoder", 2) == made.attention_of("decoder", 2)


def test_objects_become_text_and_names_become_numbers(tmp_path: Path) -> None:
    pattern = hw.Window(7, 0) | hw.GlobalTokens((0, 4))
    made = config(pattern=[pattern, "window(3, 0)"], mechanism=[None, None], positions="learned")
    made.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert stored["pattern"] == [repr(pattern), "window(3, 0)"]
    assert stored["positions"] == {"kind": "learned"}
    assert made.attention_of("decoder", 0) == (pattern, None)
    assert config(mechanism="linear").mechanism == {"kind": "linear", "feature_map": "elu"}


def test_names_of_transformers_are_taken() -> None:
    theirs = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 1}
    made = models.HeadwiseConfig(**theirs, max_position_embeddings=9)  # type: ignore[call-arg, arg-type]
    assert (made.d_model, made.num_heads, made.num_layers, made.max_positions) == (24, 3, 1, 9)
    assert made.hidden_size == 24


def test_every_layer_of_bigbird_draws_other_blocks() -> None:
    made = models.bigbird(num_layers=3)
    assert len({made.attention_of("encoder", layer)[0] for layer in range(3)}) == 3
    assert models.bigbird(num_layers=1, kind="decoder").attention_of("decoder", 0)[0] is not None


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "typing error": (
        {"num_head": 4},
        TypeError,
        "HeadwiseConfig: there is no argument num_head\n  hint: is it num_heads? ",
    ),
    "another kind": (
        {"kind": "both"},
        ValueError,
        "kind must be one of 'encoder', 'decoder', 'encoder_decoder', got 'both'\n  hint: ",
    ),
    "no size": ({"num_layers": 0}, hw.ShapeError, "sizes must be ints of at least 1, got num_lay"),
    "heads": ({"num_heads": 5}, hw.ShapeError, "num_heads must divide d_model, got 5 and 12\n"),
    "no flag": ({"gated": "yes"}, TypeError, "gated must be True or False, got 'yes'\n  hint: "),
    "no share": ({"dropout": 2.0}, ValueError, "dropout must lie between 0 and 1, got 2.0\n  hi"),
    "no share of weights": (
        {"attention_dropout": -1.0},
        ValueError,
        "attention_dropout must lie between 0 and 1, got -1.0",
    ),
    "no spread": (
        {"initializer_range": "wide"},
        ValueError,
        "initializer_range must be a finite number of at least 0, got 'wide'\n  hint: ",
    ),
    "no problem": (
        {"problem_type": "guess"},
        ValueError,
        "problem_type must be one of None, 'regression', 'single_label_classification', 'mult",
    ),
    "no token": (
        {"pad_token_id": "[PAD]"},
        TypeError,
        "pad_token_id must be the number of a token, got '[PAD]'\n  hint: tokenizer.convert",
    ),
    "no name": ({"": 3}, TypeError, "HeadwiseConfig: there is no argument \n  hint: help("),
    "no pattern": ({"pattern": "windw(3)"}, hw.PatternError, "is it window"),
    "a number": ({"pattern": 3}, TypeError, "pattern must be a pattern, its text, or None, got 3"),
    "a list too short": (
        {"pattern": ["causal"]},
        hw.ShapeError,
        "pattern must have one entry for each layer, got 1 for 2\n  hint: ",
    ),
    "an unknown mechanism": (
        {"mechanism": {"kind": "magic"}},
        ValueError,
        "mechanism must be None (softmax attention) or a dictionary whose kind is one of linear, "
        "random_features, low_rank, got {'kind': 'magic'}\n  hint: ",
    ),
    "an unknown number": (
        {"mechanism": {"kind": "linear", "rank": 4}},
        ValueError,
        "mechanism of the kind 'linear' has no rank\n  hint: it takes feature_map, decay, normal",
    ),
    "a number left out": (
        {"mechanism": {"kind": "random_features"}},
        ValueError,
        "mechanism of the kind 'random_features' needs count",
    ),
    "unknown positions": (
        {"positions": "absolute"},
        ValueError,
        "positions must be None (no positions) or a dictionary whose kind is one of learned, sin",
    ),
    "low rank in a decoder": (
        {"mechanism": [None, {"kind": "low_rank", "rank": 4}]},
        ValueError,
        "low-rank attention is not causal, and layer 1 is one of a decoder\n  hint: ",
    ),
    "blocks that move": (
        {"pattern": "bigbird(4) & window(9, 0)"},
        hw.PatternError,
        "changes as the text grows, so that a step would not see what a whole pass sees, got ",
    ),
    "settings of two stacks": (
        {"encoder_pattern": "full", "cross_mechanism": "linear"},
        ValueError,
        "encoder_pattern, cross_mechanism is for kind='encoder_decoder', got 'decoder'\n  hint: ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    changes, error, says = REFUSED[name]
    with pytest.raises(error) as refused:
        config(**changes)
    assert says in str(refused.value)
    assert "hint: " in str(refused.value)


class Even(hw.patterns.Pattern):
    """A pattern of a class that text does not know."""

    def _allows(self, q: Tensor, k: Tensor) -> Tensor:
        return (q - k) % 2 == 0


def test_a_pattern_that_text_does_not_know_is_refused() -> None:
    documents = hw.Documents([0, 0, 1])
    assert config(pattern=documents).attention_of("decoder", 0)[0] == documents
    with pytest.raises(hw.PatternError) as refused:
        config(pattern=Even())
    assert "HeadwiseConfig: pattern does not read back from its text, got " in str(refused.value)


def test_settings_that_are_changed_later_are_checked_by_the_model() -> None:
    made = config()
    made.pattern = hw.Window(3, 0)
    models.HeadwiseForCausalLM(made)
    assert made.pattern == repr(hw.Window(3, 0))
    made.mechanism = {"kind": "low_rank", "rank": 4}
    with pytest.raises(ValueError, match="not causal"):
        models.HeadwiseForCausalLM(made)


@pytest.mark.usefixtures("plain_calls")
def test_what_layers_refuse_is_refused_when_a_model_is_made() -> None:
    with pytest.raises(ValueError, match="seed must be an int"):
        models.HeadwiseModel(config(mechanism={"kind": "random_features", "count": 4, "seed": "x"}))
    with pytest.raises(hw.ShapeError, match=r"HeadwiseForSequence.*got num_labels=0\n  hint"):
        models.HeadwiseForSequenceClassification(config("encoder", num_labels=0))
    with pytest.raises(NotImplementedError, match="dropout"):
        models.HeadwiseModel(config(mechanism="linear", attention_dropout=0.1))
    with pytest.raises(hw.PatternError, match=r"must be none or Causal\(\)"):
        models.HeadwiseModel(config(mechanism="linear", pattern="window(3, 0)"))
    with pytest.raises(TypeError, match="config must be a HeadwiseConfig, got BertConfig"):
        models.HeadwiseModel(BertConfig())  # type: ignore[arg-type]

"""What headwise cannot serve is refused by name, and a report says it of every module."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.masking_utils import create_causal_mask

import headwise as hw
from headwise import hf
from headwise.errors import BackendRefused, ShapeError
from headwise.hf.attention import attention
from headwise.hf.families import own_attention, refuse_config
from headwise.hf.prepare import mask
from tests.support.hf_tiny import FAMILIES, tiny, tokens

OWN = [
    ("longformer", "LongformerModel"),
    ("big_bird", "BigBirdModel"),
    ("led", "LEDModel"),
    ("bloom", "BloomModel"),
    ("mpnet", "MPNetModel"),
    ("falcon", "FalconModel"),
    ("deberta", "DebertaModel"),
    ("deberta_v2", "DebertaV2Model"),
    ("xlnet", "XLNetModel"),
    ("git", "GitModel"),
]


@pytest.mark.parametrize(("family", "name"), OWN)
def test_models_with_their_own_attention_are_refused_when_built(family: str, name: str) -> None:
    hf.register()
    kind = getattr(transformers, name)
    with pytest.raises(BackendRefused, match=f"{name} attends by its own code") as refusal:
        kind._from_config(kind.config_class(), attn_implementation="headwise")
    assert "hint: load it with attn_implementation='eager'" in str(refusal.value)


def test_changing_over_is_refused_as_well() -> None:
    hf.register()
    model = transformers.BloomModel(_bloom_config())
    with pytest.raises(BackendRefused, match="BloomModel attends by its own code"):
        model.set_attn_implementation("headwise")
    assert model.config._attn_implementation != "headwise"
    assert model(torch.tensor([[1, 2]])).last_hidden_state.isfinite().all()


def test_the_mask_function_refuses_them_too() -> None:
    importlib.import_module("transformers.models.bloom.modeling_bloom")
    with pytest.raises(BackendRefused, match="bloom attends by its own code"):
        refuse_config(transformers.BloomConfig())


def test_who_is_refused_follows_from_the_installed_source() -> None:
    """A modelling file with an attention module and no word of the interface is refused."""
    folder = Path(transformers.__file__).parent / "models"
    wrong, refused = [], 0
    for path in sorted(folder.glob("*/modeling_*.py")):
        source = path.read_text()
        if "masking_utils" not in source:
            continue
        named = re.search(r"^class \w*Attention\w*\(", source, re.MULTILINE) is not None
        table = "_ATTENTION_CLASSES[" in source
        expected = named and ("ALL_ATTENTION_FUNCTIONS" not in source or table)
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        refused += expected
        if bool(own_attention(module)) != expected:
            wrong.append((path.stem, expected))
    assert wrong == []
    assert refused >= 36


@pytest.mark.parametrize("name", FAMILIES)
def test_served_families_are_served_whole(name: str) -> None:
    model = tiny(name)
    found = hf.report(model)
    assert len(found) >= 2
    assert all(row.served for row in found)
    accelerated = FAMILIES[name].through == "accelerate"
    assert all(accelerated or not row.reason for row in found)


def test_a_report_names_what_is_left() -> None:
    model = tiny("llama", "sdpa")
    model.extra = nn.MultiheadAttention(8, 2)
    text = str(hf.report(model))
    assert text.splitlines()[0] == ("LlamaForCausalLM: headwise serves 0 of 3 attention modules")
    assert "left    2 LlamaAttention" in text
    assert "its attn_implementation is 'sdpa'" in text
    assert "left    1 MultiheadAttention (extra): torch's own layer" in text
    bloom = transformers.BloomModel(_bloom_config())
    assert [row.reason.split(";")[0] for row in hf.report(bloom)] == ["attends by its own code"]


def test_a_report_says_what_was_spelled_out() -> None:
    model = tiny("llama")

    def seen(batch: Any, head: Any, q: Any, k: Any) -> Any:
        return q - k < 3

    embedded = torch.zeros(2, 11, 24)
    made = create_causal_mask(model.config, embedded, None, None, and_mask_function=seen)
    model(tokens(), attention_mask=made, use_cache=False)
    assert all("spelled out densely" in row.reason for row in hf.report(model))
    model(tokens())
    assert all(not row.reason for row in hf.report(model))


def test_an_unknown_argument_is_refused_by_name() -> None:
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(BackendRefused, match="does not know, got block_indices, indices"):
        attention(nn.Identity(), q, q, q, None, indices=q, block_indices=q, use_cache=True)


def test_a_mask_for_other_sizes_is_refused() -> None:
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ShapeError, match="Identity was given a mask for 3 queries and 5 keys"):
        attention(nn.Identity(), q, q, q, mask(1, 3, 5))


def test_registering_twice_changes_nothing() -> None:
    hf.register()
    choose = transformers.PreTrainedModel.get_correct_attn_implementation
    hf.register()
    assert transformers.PreTrainedModel.get_correct_attn_implementation is choose
    assert transformers.AttentionInterface._global_mapping["headwise"] is attention
    assert transformers.AttentionMaskInterface._global_mapping["headwise"] is mask


def test_importing_headwise_does_not_import_transformers() -> None:
    code = "import sys, headwise.hf; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _bloom_config() -> transformers.BloomConfig:
    return transformers.BloomConfig(hidden_size=8, n_head=2, n_layer=1, vocab_size=20)


def test_a_module_that_does_not_say_is_not_taken_for_causal() -> None:
    """Cross attention without a mask and without an attribute is_causal sees every key (B30)."""
    query, key = torch.randn(1, 4, 5, 8), torch.randn(1, 4, 5, 8)
    output, _ = attention(torch.nn.Identity(), query, key, key, None)
    torch.testing.assert_close(output, hw.attend(query, key, key).transpose(1, 2))


def test_every_spelling_of_the_name_is_refused_for_models_of_their_own_code() -> None:
    hf.register()
    model = transformers.BloomModel(transformers.BloomConfig(hidden_size=24, n_layer=1, n_head=6))
    for name in ("headwise", {"": "headwise"}):
        with pytest.raises(hw.BackendRefused, match="BloomModel attends by its own code"):
            model.set_attn_implementation(name)

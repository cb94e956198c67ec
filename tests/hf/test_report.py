"""report: what is served, what is accelerated, what is left, and why."""

from typing import Any

import pytest
import torch
import transformers
from torch import nn

import headwise as hw
from headwise import hf
from tests.support.hf_tiny import tiny


def test_before_and_after() -> None:
    model = tiny("bert", "sdpa")
    model.extra = nn.MultiheadAttention(8, 2)
    place = "encoder.layer.0.attention.self … encoder.layer.1.attention.self"
    assert str(hf.report(model)) == (
        "BertModel: headwise serves 0 of 3 attention modules\n"
        f"  left    2 BertSelfAttention ({place}): its attn_implementation is 'sdpa'; "
        "model.set_attn_implementation('headwise') changes that\n"
        "  left    1 MultiheadAttention (extra): torch's own layer; hf.accelerate(model) takes it\n"
        "  linear layers: 13 left: hf.accelerate(model) takes them\n"
        "  other modules: 2 left: hf.accelerate(model) takes them\n"
        "  padding: goes through 2 BertLayer; hf.accelerate(model, unpad=True) leaves it out"
    )
    assert str(hf.report(hf.accelerate(model))) == (
        "BertModel: headwise serves 3 of 3 attention modules\n"
        f"  served  2 BertSelfAttention ({place})\n"
        "  served  1 MultiheadAttention (extra)\n"
        "  linear layers: 13 accelerated\n"
        "  other modules: 2 accelerated; calls under autocast or a compiler run the code of their "
        "own class\n"
        "  padding: goes through 2 BertLayer; hf.accelerate(model, unpad=True) leaves it out"
    )


def test_padding_goes_through_converted_layers() -> None:
    model = hf.accelerate(hf.convert(tiny("bert"), hw.Window(2, 2), layers=[1]), unpad=True)
    left_out, through = hf.report(model).padding
    assert left_out.startswith("padding: left out of 1 BertLayer; calls for attention weights")
    assert through == "padding: goes through 1 BertLayer: its attention is converted"


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_is_left_has_its_reason() -> None:
    quantised = torch.ao.nn.quantized.dynamic.Linear(4, 4)  # type: ignore[no-untyped-call]
    replaced = nn.Linear(4, 4)
    replaced.forward = lambda x: x  # type: ignore[method-assign, assignment]
    model = hf.accelerate(nn.ModuleList([nn.Linear(4, 4), quantised, replaced]))
    assert str(hf.report(model)) == (
        "ModuleList: headwise serves 0 of 0 attention modules\n"
        "  linear layers: 1 accelerated, 1 left: DynamicQuantizedLinear computes in its own way, "
        "1 left: its forward was replaced"
    )


def test_families_with_code_of_their_own() -> None:
    sizes: dict[str, Any] = {"vocab_size": 61, "hidden_size": 24, "num_attention_heads": 6}
    config = transformers.LongformerConfig(
        **sizes, num_hidden_layers=2, intermediate_size=40, attention_window=4
    )
    model = transformers.LongformerModel(config)
    reasons = [row.reason for row in hf.report(model)]
    assert reasons == 2 * ["attends by its own code; hf.accelerate(model) takes it"]
    found = hf.report(hf.accelerate(model))
    assert [(row.kind, row.served) for row in found] == 2 * [("LongformerSelfAttention", True)]
    deberta = transformers.DebertaV2Model(
        transformers.DebertaV2Config(**sizes, num_hidden_layers=1, intermediate_size=40)
    )
    left = hf.report(hf.accelerate(deberta))
    assert [(row.served, row.reason) for row in left] == [(False, "attends by its own code")]


@pytest.mark.parametrize("training", [True, False])
def test_a_report_changes_nothing(training: bool) -> None:
    model = tiny("gpt2", "sdpa").train(training)
    shown = str(model)
    first = str(hf.report(model))
    assert str(hf.report(model)) == first
    assert str(model) == shown
    assert len(hf.report(model).layers) == 2

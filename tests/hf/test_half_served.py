"""Models that attend by their own code in one half: refused by name, accelerated where right."""

import copy
from importlib import import_module
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from headwise import hf
from headwise.errors import BackendRefused
from headwise.hf.families import mixes_tokens_itself, own_half
from tests.support.budget import assert_within_budget
from tests.support.hf_tiny import answer, padded, tiny, tokens

_TEXT: dict[str, Any] = {"vocab_size": 61, "d_model": 24, "decoder_start_token_id": 1}
_LAYERS: dict[str, Any] = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
}
_SHORT_T5: dict[str, Any] = {"num_layers": 1, "num_heads": 6, "d_kv": 4, "d_ff": 40}
CONFIGS = {
    "BigBirdPegasusModel": transformers.BigBirdPegasusConfig(**_TEXT, **_LAYERS),
    "PegasusXModel": transformers.PegasusXConfig(
        **_TEXT, **_LAYERS, num_global_tokens=3, block_size=4
    ),
    "LongT5Model": transformers.LongT5Config(**_TEXT, **_SHORT_T5, local_radius=3),
    "InformerModel": transformers.InformerConfig(
        **_LAYERS,
        prediction_length=4,
        context_length=11,
        lags_sequence=[1, 2],
        num_time_features=1,
        d_model=24,
        distil=False,
    ),
}
TEXTS = ["BigBirdPegasusModel", "PegasusXModel", "LongT5Model"]

HYBRIDS = ["bamba", "falcon_h1", "jamba", "lfm2", "minimax", "nemotron_h", "qwen3_next", "zamba2"]


def built(name: str, implementation: str) -> Any:
    torch.manual_seed(5)
    kind: Any = getattr(transformers, name)
    config = copy.deepcopy(CONFIGS[name])
    return kind._from_config(config, attn_implementation=implementation).eval()


def given(name: str) -> dict[str, Tensor]:
    if name != "InformerModel":
        encoder = {"input_ids": tokens(), "attention_mask": padded("right")}
        return {**encoder, "decoder_input_ids": tokens(length=5)}
    past = {"past_values": torch.randn(2, 13), "past_observed_mask": torch.ones(2, 13)}
    future = {"future_values": torch.randn(2, 4), "future_time_features": torch.randn(2, 4, 1)}
    return {**past, **future, "past_time_features": torch.randn(2, 13, 1)}


@pytest.mark.parametrize("name", CONFIGS)
def test_they_are_refused_by_name_when_built_and_when_changed(name: str) -> None:
    hf.register()
    said = f"{name} attends by its own code .* and only the rest of it asks"
    with pytest.raises(BackendRefused, match=said) as refusal:
        built(name, "headwise")
    assert "hint: load it with attn_implementation='eager'" in str(refusal.value)
    model = built(name, "eager")
    with pytest.raises(BackendRefused, match=said):
        model.set_attn_implementation("headwise")
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", CONFIGS)
def test_accelerated_they_answer_as_before_and_come_back(name: str) -> None:
    before = built(name, "eager")
    after, inputs = hf.accelerate(copy.deepcopy(before)), given(name)

    def seeded(model: Any, inputs: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(2)  # Informer draws keys
        return answer(model, inputs)

    doubled = {key: x.double() if x.is_floating_point() else x for key, x in inputs.items()}
    with torch.no_grad():
        exact = seeded(copy.deepcopy(before).double(), doubled)
        found, plain = seeded(after, inputs), seeded(before, inputs)
    assert_within_budget(found, exact=exact, plain=plain, label=name)
    hf.restore(after)
    assert after.config._attn_implementation == "eager"
    assert str(after) == str(before)


def test_what_accelerate_serves_of_each() -> None:
    served = {}
    for name in CONFIGS:
        found = hf.report(hf.accelerate(built(name, "eager")))
        served[name] = (sum(row.served for row in found), len(found))
    assert served == {
        "BigBirdPegasusModel": (3, 3),
        "PegasusXModel": (2, 3),
        "LongT5Model": (2, 3),
        "InformerModel": (0, 3),
    }


def test_a_report_says_why_the_other_half_is_left() -> None:
    model = hf.accelerate(built("InformerModel", "eager"))
    assert [row.reason for row in hf.report(model) if row.kind == "InformerAttention"] == [
        "its attn_implementation is 'eager', and other parts of its model attend by their own "
        "code; hf.accelerate(model) takes it where it can take all of them"
    ]


def test_a_half_by_itself_is_whole() -> None:
    hf.register()
    config = transformers.BigBirdPegasusConfig(**_TEXT, **_LAYERS, is_decoder=True)
    kind: Any = transformers.BigBirdPegasusForCausalLM
    model = kind._from_config(config, attn_implementation="headwise")
    assert all(row.served for row in hf.report(model))


@pytest.mark.parametrize("family", HYBRIDS)
def test_layers_with_a_state_make_no_half(family: str) -> None:
    file = import_module(f"transformers.models.{family}.modeling_{family}")
    models = [kind for name, kind in vars(file).items() if name in file.__all__]
    assert models
    assert not any(own_half(kind) for kind in models)


def test_sampled_points_pooled_tokens_and_maps_of_weights_make_no_half() -> None:
    kinds = {
        "deformable_detr": "DeformableDetrMultiscaleDeformableAttention",
        "detr": "DetrMHAttentionMap",
        "aimv2": "Aimv2AttentionPoolingHead",
        "llama": "LlamaAttention",
        "t5": "T5DenseGatedActDense",
    }
    for family, name in kinds.items():
        file = import_module(f"transformers.models.{family}.modeling_{family}")
        assert not mixes_tokens_itself(getattr(file, name)), name
    assert mixes_tokens_itself(type(tiny("bloom", "eager").transformer.h[0].self_attention))

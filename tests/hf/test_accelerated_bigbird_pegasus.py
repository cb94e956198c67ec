"""BigBirdPegasus after ``accelerate``: its encoder is fast, its decoder goes through ours."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.bigbird_pegasus import modeling_bigbird_pegasus as theirs

from headwise import hf
from headwise.hf.accelerated.bigbird_pegasus import FastBlockSparseAttention, FastSelfAttention
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.hf_big_bird import SHORT, VOCAB, tiny_pegasus
from tests.support.hf_big_bird import tokens as source


def tokens(length: int, padding: str = "right") -> dict[str, Tensor]:
    return {**source(length, padding), "decoder_input_ids": torch.randint(3, VOCAB, (2, 5))}


def derived(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the logits, and what a query map of the encoder learns."""
    output = model(**given).logits
    upstream = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
    weight = model.model.encoder.layers[0].self_attn.self.query.weight
    (learned,) = torch.autograd.grad(output, weight, upstream.to(output.dtype))
    return {"logits": output.detach(), "query": learned}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("padding", ["none", "right"])
@pytest.mark.parametrize("length", [SHORT - 5, SHORT + 1, 53])
def test_logits_and_gradients(length: int, padding: str, training: bool) -> None:
    model, given = tiny_pegasus(training), tokens(length, padding)
    plain, exact = (derived(same, given) for same in (deepcopy(model), deepcopy(model).double()))
    for label, found in derived(hf.accelerate(model), given).items():
        assert_within_budget(found, exact=exact[label], plain=plain[label], label=label)


@pytest.mark.parametrize("length", [SHORT, 53])
def test_weights_on_request(length: int) -> None:
    model, given = tiny_pegasus(), tokens(length)
    plain = model(**given, output_attentions=True, output_hidden_states=True)
    found = hf.accelerate(model)(**given, output_attentions=True, output_hidden_states=True)
    for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        torch.testing.assert_close(found[name], plain[name])
    torch.testing.assert_close(found.encoder_hidden_states, plain.encoder_hidden_states)
    torch.testing.assert_close(found.logits, plain.logits)


@pytest.mark.parametrize("length", [SHORT, 53])
def test_it_generates_the_same(length: int) -> None:
    model, given = tiny_pegasus(), tokens(length)
    del given["decoder_input_ids"]
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    plain = model.generate(**given, **options)
    assert torch.equal(hf.accelerate(model).generate(**given, **options), plain)


def test_a_switch_to_full_attention_stays_fast_and_is_undone() -> None:
    model, given = tiny_pegasus(), tokens(53)
    plain = model(**given).logits
    hf.accelerate(model)
    kinds = []
    for length in (53, SHORT):
        model(**tokens(length))
        kinds.append({type(layer.self_attn.self) for layer in model.model.encoder.layers})
    assert kinds == [{FastBlockSparseAttention}, {FastSelfAttention}]
    hf.restore(model)
    assert type(model.model.encoder.layers[0].self_attn.self) is theirs.BigBirdPegasusSelfAttention
    assert model.config._attn_implementation == "eager"
    model.model.encoder.set_attention_type("block_sparse")
    assert_same_bits(model(**given).logits, plain)


def test_the_decoder_is_sent_through_headwise() -> None:
    model = hf.accelerate(tiny_pegasus())
    assert model.model.decoder.layers[0].self_attn.config._attn_implementation == "headwise"
    served = {row.kind for row in hf.report(model) if row.served}
    assert "BigBirdPegasusDecoderAttention" in served

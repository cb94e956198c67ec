"""One pass: what may be seen, where tokens stand, what is shown beside the result, refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise import models
from tests.support.own_models import (
    DECODERS,
    ENCODERS,
    LOW_RANK,
    PAIRS,
    VOCAB,
    config,
    given,
    seeded,
    tiny,
    tokens,
)

EVERYTHING = [
    *(("decoder", name, changes) for name, changes in DECODERS.items()),
    *(("encoder", name, changes) for name, changes in ENCODERS.items()),
    *(("encoder_decoder", name, changes) for name, changes in PAIRS.items()),
]
every = pytest.mark.parametrize(
    ("kind", "changes"),
    [pytest.param(kind, changes, id=f"{kind}-{name}") for kind, name, changes in EVERYTHING],
)
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 2e-4}


@every
@torch.no_grad()
def test_padding_behind_changes_nothing(kind: str, changes: dict[str, Any]) -> None:
    """Even padding that is NaN: embedded tokens stand for themselves."""
    model = tiny(kind, **changes)
    alone = given(kind, 1, 9)
    x = model.get_input_embeddings()(torch.cat((alone["input_ids"], tokens(1, 4)), 1))
    x[:, 9:] = torch.nan
    mask = torch.tensor([[1] * 9 + [0] * 4])
    rest = {name: value for name, value in alone.items() if name != "input_ids"}
    found = model(inputs_embeds=x, attention_mask=mask, **rest).logits
    wanted = model(**alone).logits
    blocks = "bigbird" in str(changes) and kind == "encoder"
    if not blocks:
        torch.testing.assert_close(found[:, : wanted.shape[1]], wanted, **CLOSE)
    assert found[:, :9].isfinite().all()


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_padding_in_front_changes_nothing_in_a_decoder(name: str) -> None:
    model = tiny(**DECODERS[name])
    ids = tokens(2, 11)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    found = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(found[:1], model(ids[:1]).logits, **CLOSE)
    torch.testing.assert_close(found[1:, 4:], model(ids[1:, 4:]).logits, **CLOSE)


@pytest.mark.parametrize("name", ["full", "longformer", "linear", "performer"])
@torch.no_grad()
def test_padding_in_front_changes_nothing_in_an_encoder(name: str) -> None:
    model = tiny("encoder", positions="learned", **ENCODERS[name])
    ids = tokens(2, 11)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, :4] = False
    found = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(found[1:, 4:], model(ids[1:, 4:]).logits, **CLOSE)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_no_decoder_sees_what_comes(name: str) -> None:
    model = tiny(**DECODERS[name])
    ids = tokens(1, 13)
    other = ids.clone()
    other[:, 7:] = (other[:, 7:] + 5) % VOCAB
    found, changed = model(ids).logits, model(other).logits
    torch.testing.assert_close(found[:, :7], changed[:, :7], rtol=0, atol=1e-5)
    assert not torch.allclose(found[:, 7:], changed[:, 7:], atol=1e-3)


@every
def test_outputs_beside_the_result(kind: str, changes: dict[str, Any]) -> None:
    model = tiny(kind, **changes)
    asked = given(kind)
    out = (
        model(**asked, output_hidden_states=True, output_attentions=True, use_cache=False)
        if (kind != "encoder")
        else model(**asked, output_hidden_states=True, output_attentions=True)
    )
    plain = model(**asked)
    assert torch.equal(out.logits, plain.logits)
    side = "decoder_" if kind == "encoder_decoder" else ""
    states, weights = out[f"{side}hidden_states"], out[f"{side}attentions"]
    assert len(states) == 3
    assert len(weights) == 2
    length = states[0].shape[1]
    assert weights[0].shape == (2, 2, length, length)
    head = model.transform or torch.nn.Identity()
    torch.testing.assert_close(model.lm_head(head(states[-1])), out.logits)
    if kind == "encoder_decoder":
        assert out.cross_attentions[1].shape == (2, 2, length, 11)
        assert len(out.encoder_attentions) == 2
    as_tuple = model(**asked, return_dict=False)
    assert torch.equal(as_tuple[0], plain.logits)


@torch.no_grad()
def test_weights_are_those_of_the_pass() -> None:
    """Times values and W_o they give what the layer gave."""
    model = tiny("encoder", pattern="window(2, 1)", norm_first=True)
    block = model.model.encoder.blocks[0]
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[1, 8:] = 0
    out = model(tokens(), attention_mask=mask, output_attentions=True, output_hidden_states=True)
    x = block.attention_norm(out.hidden_states[0])
    values = block.attention.project(x)[2]
    mixed = block.attention.W_o(block.attention.combine_heads(out.attentions[0] @ values))
    wanted = block.attention(x, kv_mask=mask.bool())
    torch.testing.assert_close(mixed, wanted, **CLOSE)
    assert (out.attentions[0][1, :, :, 8:] == 0).all()


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "alibi"])
@torch.no_grad()
def test_positions_that_are_given(positions: str) -> None:
    model = tiny(positions=positions, pattern="window(2, 0) | global(4)")
    ids = tokens(2, 7)
    usual = model(ids).logits
    same = torch.arange(7)[None]
    torch.testing.assert_close(model(ids, position_ids=same).logits, usual, **CLOSE)
    moved = model(ids, position_ids=same + 3).logits
    assert not torch.allclose(moved, usual, atol=1e-3)
    each = torch.stack((torch.arange(7), torch.arange(7) + 3))
    found = model(ids, position_ids=each).logits
    torch.testing.assert_close(found, torch.stack((usual[0], moved[1])), **CLOSE)


POSITIONS: dict[str, tuple[Tensor, str]] = {
    "packed": (torch.tensor([[0, 1, 2, 0, 1, 2, 3]]), "must count up by one from token to token"),
    "too few": (torch.arange(6)[None], "must be of the 7 new tokens, got 6"),
    "flat": (torch.arange(7), "must be (2, 7), got (7,)"),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_that_are_refused(name: str) -> None:
    ids, says = POSITIONS[name]
    with pytest.raises(hw.PatternError) as refused:
        tiny()(tokens(2, 7), position_ids=ids)
    assert says in str(refused.value)
    assert "hint: leave them out" in str(refused.value)


MASKS: dict[str, tuple[Tensor, str]] = {
    "of pairs": (
        torch.ones(2, 1, 7, 7),
        "must be (2, 7), one number for each token, those in the ",
    ),
    "added to scores": (torch.full((2, 7), -1e4), "must hold 1 for real tokens and 0 for padding"),
    "one sample": (torch.ones(1, 7), "must be (2, 7)"),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_are_refused(name: str) -> None:
    mask, says = MASKS[name]
    for kind in ("decoder", "encoder"):
        with pytest.raises(hw.PatternError) as refused:
            tiny(kind)(tokens(2, 7), attention_mask=mask)
        assert says in str(refused.value)


def test_arguments_that_nothing_reads() -> None:
    model = tiny()
    with pytest.raises(TypeError, match=r"nothing that reads token_type_ids\n  hint: .*segments=0"):
        model(tokens(), token_type_ids=torch.zeros(2, 11, dtype=torch.long))
    with pytest.raises(TypeError, match=r"nothing that reads decoder_input_ids\n.*kind='decoder'"):
        model.model(tokens(), decoder_input_ids=tokens())
    with pytest.raises(TypeError, match="one of input_ids and inputs_embeds is needed, got neith"):
        model()
    with pytest.raises(TypeError, match="input_ids and inputs_embeds is needed, got both"):
        model(tokens(), inputs_embeds=torch.zeros(2, 11, 12))
    with pytest.raises(TypeError, match="one of decoder_input_ids and decoder_inputs_embeds"):
        tiny("encoder_decoder")(tokens())


@pytest.mark.parametrize(
    ("made", "kind", "says"),
    [
        (
            models.HeadwiseForCausalLM,
            "encoder",
            "must be 'decoder', got 'encoder'\n  hint: Headwis",
        ),
        (models.HeadwiseForMaskedLM, "decoder", "must be 'encoder', got 'decoder'"),
        (models.HeadwiseForSeq2SeqLM, "decoder", "must be 'encoder_decoder', got 'decoder'"),
        (
            models.HeadwiseForSequenceClassification,
            "encoder_decoder",
            "must be 'encoder' or 'decoder', got 'encoder_decoder'",
        ),
    ],
)
def test_heads_refuse_other_kinds(made: Any, kind: str, says: str) -> None:
    with pytest.raises(ValueError, match="kind must be") as refused:
        made(config(kind))
    assert says in str(refused.value)


@torch.no_grad()
def test_segments() -> None:
    model = tiny("encoder", num_segments=2)
    zeros = torch.zeros(2, 11, dtype=torch.long)
    assert torch.equal(model(tokens(), token_type_ids=zeros).logits, model(tokens()).logits)
    assert not torch.equal(model(tokens(), token_type_ids=zeros + 1).logits, model(tokens()).logits)


@torch.no_grad()
def test_embedded_tokens_in_place_of_numbers() -> None:
    for kind in ("decoder", "encoder", "encoder_decoder"):
        model = tiny(kind, scale_embeddings=True)
        asked = given(kind)
        stack = model.model.first
        as_tokens = model(**asked).logits
        asked["inputs_embeds"] = stack.embed(asked.pop("input_ids"))
        if kind == "encoder_decoder":
            asked["decoder_inputs_embeds"] = stack.embed(asked.pop("decoder_input_ids"))
        assert torch.equal(model(**asked).logits, as_tokens)


@pytest.mark.parametrize("tied", [True, False])
def test_the_vocabulary_grows(tied: bool) -> None:
    model = tiny("encoder_decoder", tie_word_embeddings=tied, lm_bias=True)
    shared = model.lm_head.weight is model.get_input_embeddings().weight
    assert shared is tied
    before = model(**given("encoder_decoder")).logits
    model.resize_token_embeddings(VOCAB + 6)
    assert (model.lm_head.weight is model.get_input_embeddings().weight) is tied
    assert model.config.vocab_size == VOCAB + 6
    found = model(**given("encoder_decoder"), labels=tokens(2, 5) + 5)
    assert found.logits.shape == (2, 5, VOCAB + 6)
    torch.testing.assert_close(found.logits[..., :VOCAB], before)
    assert found.loss.isfinite()


@pytest.mark.parametrize("pooling", [None, "first", "last", "mean"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@torch.no_grad()
def test_classifiers_read_real_tokens(kind: str, pooling: str | None) -> None:
    settings = config(kind, pooling=pooling, pooler=True, num_labels=3, positions="learned")
    model = seeded(models.HeadwiseForSequenceClassification, settings)
    ids = tokens(2, 9)
    for hidden in (slice(0, 4), slice(6, 9)):
        mask = torch.ones_like(ids)
        mask[1, hidden] = 0
        found = model(ids, attention_mask=mask).logits
        torch.testing.assert_close(found[:1], model(ids[:1]).logits, **CLOSE)
        real = ids[1:, mask[1].bool()]
        torch.testing.assert_close(found[1:], model(real).logits, **CLOSE)


def test_a_model_of_low_rank_keeps_to_its_length() -> None:
    model = tiny("encoder", mechanism=LOW_RANK, max_positions=8)
    with pytest.raises(hw.ShapeError, match="a call may bring max_length=8 tokens, got 11"):
        model(tokens())


@torch.no_grad()
def test_accelerate_and_conversions_of_dtype() -> None:
    model = tiny("encoder", **ENCODERS["performer"])
    wanted = model(tokens()).logits
    torch.testing.assert_close(hw.hf.accelerate(model)(tokens()).logits, wanted, **CLOSE)
    assert "serves 2 of 2" in str(hw.hf.report(model))
    hw.hf.restore(model)
    assert torch.equal(model(tokens()).logits, wanted)
    half = model.to(torch.bfloat16)(tokens()).logits
    assert half.dtype == torch.bfloat16
    assert (half.float() - wanted).abs().max() < 0.1 * wanted.abs().max()

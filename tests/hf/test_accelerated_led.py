"""LED through ``headwise.hf.accelerate``: encoder, decoder, both caches, generation."""

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.led import modeling_led

import headwise as hw
from tests.support.budget import assert_same_bits, assert_within_budget

WINDOWS = [8, 4]
NAMES = (
    "logits",
    "encoder_last_hidden_state",
    "encoder_hidden_states",
    "decoder_hidden_states",
    "encoder_attentions",
    "encoder_global_attentions",
    "decoder_attentions",
    "cross_attentions",
)


@pytest.fixture(scope="module")
def model() -> Any:
    config = transformers.LEDConfig(
        vocab_size=61,
        d_model=24,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=40,
        decoder_ffn_dim=40,
        attention_window=list(WINDOWS),
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
        dropout=0.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        made: Any = transformers.LEDForConditionalGeneration(config)
        for weight in made.parameters():
            nn.init.normal_(weight, std=0.3)
    return made.eval()


@pytest.fixture
def fast(model: Any) -> Any:
    return hw.hf.accelerate(copy.deepcopy(model))


def _given(length: int, padded: str = "none", asking: str = "few") -> dict[str, Tensor]:
    """Return sources of two samples, padding and global tokens in them, and targets."""
    mask = torch.ones(2, length, dtype=torch.long)
    if padded != "none":
        mask[1, :8] = 0
    mask = mask.flip(1) if padded == "right" else mask
    given = {"input_ids": torch.randint(3, 61, (2, length)), "attention_mask": mask}
    if asking != "none":
        chosen = torch.zeros(2, length, dtype=torch.long)
        chosen[0, 0] = chosen[1, [8, 9]] = 1
        if asking == "many":
            chosen[0, :7] = 1
        given["global_attention_mask"] = chosen
    given["decoder_input_ids"] = torch.randint(3, 61, (2, 5))
    return given


def _flat(output: Any) -> dict[str, Tensor]:
    found = {}
    for name in NAMES:
        value = output.get(name)
        for place, tensor in enumerate(value if isinstance(value, tuple) else (value,)):
            if tensor is not None:
                found[f"{name} {place}"] = tensor
    return found


def _compare(model: Any, fast: Any, given: dict[str, Tensor], **asked: Any) -> None:
    with torch.no_grad():
        exact = _flat(copy.deepcopy(model).double()(**given, **asked))
        theirs, ours = _flat(model(**given, **asked)), _flat(fast(**given, **asked))
    assert ours.keys() == theirs.keys() == exact.keys()
    for name, right in exact.items():
        assert_within_budget(ours[name], exact=right, plain=theirs[name], label=name)


@pytest.mark.parametrize("length", [16, 19, 33])
@pytest.mark.parametrize("padded", ["none", "left", "right"])
@pytest.mark.parametrize("asking", ["none", "few", "many"])
def test_all_hidden_states(model: Any, fast: Any, length: int, padded: str, asking: str) -> None:
    _compare(model, fast, _given(length, padded, asking), output_hidden_states=True)


def test_all_weights(model: Any, fast: Any) -> None:
    given = _given(19, "right")
    given["global_attention_mask"][0, 5] = 1
    _compare(model, fast, given, output_attentions=True)
    rows = {row.name: row for row in hw.hf.report(fast).rows}
    assert all(row.served for row in rows.values())
    encoder = rows["led.encoder.layers.0.self_attn.longformer_self_attn"]
    assert encoder.kind == "LEDEncoderSelfAttention"
    assert "asked for attention weights" in encoder.reason
    assert rows["led.decoder.layers.0.encoder_attn"].kind == "LEDDecoderAttention"


def test_padded_targets(model: Any, fast: Any) -> None:
    given = _given(19, "right")
    seen = torch.ones(2, 5, dtype=torch.long)
    seen[1, :2] = 0
    given["decoder_attention_mask"] = seen
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(**given).logits
        theirs, ours = (one(**given).logits for one in (model, fast))
    real = seen.bool()
    assert_within_budget(ours[real], exact=exact[real], plain=theirs[real], label="logits")


def test_embeddings_that_the_caller_gives(model: Any, fast: Any) -> None:
    given = _given(19, "right")
    embeds = model.led.encoder.embed_tokens(given.pop("input_ids")).detach()
    theirs, ours = (one(inputs_embeds=embeds, **given).logits for one in (model, fast))
    torch.testing.assert_close(ours, theirs)


def test_a_result_without_names(model: Any, fast: Any) -> None:
    given: dict[str, Any] = {"return_dict": False, "output_hidden_states": True}
    given.update(input_ids=_given(19)["input_ids"])
    theirs, ours = (one.get_encoder()(**given) for one in (model, fast))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("padded", ["none", "left", "right"])
def test_generation(model: Any, fast: Any, beams: int, padded: str) -> None:
    given = _given(19, padded)
    del given["decoder_input_ids"]
    asked = {"max_new_tokens": 12, "num_beams": beams, "output_logits": True}
    theirs, ours = (
        one.generate(**given, **asked, return_dict_in_generate=True) for one in (model, fast)
    )
    assert_same_bits(ours.sequences, theirs.sequences)
    if beams > 1:
        # Rounding decides in what order beams stand that are worth the same.
        return
    for found, right in zip(ours.logits, theirs.logits, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def test_generation_with_our_cache(model: Any, fast: Any) -> None:
    given = _given(19, "right")
    del given["decoder_input_ids"]
    pair = transformers.EncoderDecoderCache(hw.hf.Cache(), hw.hf.Cache())
    right = model.generate(**given, max_new_tokens=12)
    found = fast.generate(**given, max_new_tokens=12, cache=pair)
    assert_same_bits(found, right)


@pytest.mark.parametrize("asking", ["none", "few", "many"])
def test_gradients(model: Any, fast: Any, asking: str) -> None:
    """Samples with as many global tokens each, for theirs has NaN otherwise in float64."""
    given = _given(16, asking=asking)
    if asking != "none":
        given["global_attention_mask"][1] = given["global_attention_mask"][0].flip(0)
    exact = _gradients(copy.deepcopy(model).double(), given)
    theirs, ours = _gradients(copy.deepcopy(model), given), _gradients(fast, given)
    assert ours.keys() == theirs.keys() == exact.keys()
    for name, right in exact.items():
        assert_within_budget(ours[name], exact=right, plain=theirs[name], label=name)


def _gradients(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    for name, weight in model.named_parameters():
        if "query.weight" in name or "q_proj.weight" in name:
            # Scores of usual size: the backward pass computes the weights from them anew.
            weight.data.mul_(0.3)
    logits = model.train()(**given).logits
    upstream = torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view(logits.shape)
    logits.backward(upstream.to(logits.dtype))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_layers_left_out_in_training(model: Any, fast: Any) -> None:
    given = _given(16)
    for one in (model, fast):
        one.led.encoder.layerdrop = 0.5
    found = []
    for seed in range(6):
        for one in (model.train(), fast.train()):
            torch.manual_seed(seed)
            found.append(one(**given).encoder_last_hidden_state)
    model.eval().led.encoder.layerdrop = 0.0
    torch.testing.assert_close(found[1::2], found[::2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_dtypes(model: Any, dtype: torch.dtype) -> None:
    short = copy.deepcopy(model).to(dtype)
    fast = hw.hf.accelerate(copy.deepcopy(short))
    _compare(short, fast, _given(19, "right"), output_hidden_states=True)


def test_no_mask_of_length_squared_is_made(fast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a mask was spelled out")

    monkeypatch.setattr(modeling_led, "_prepare_4d_attention_mask_inverted", refuse)
    fast(**_given(19, "right"))


def test_files_and_restoring(model: Any, fast: Any, tmp_path: Any) -> None:
    given = _given(19, "right")
    with torch.no_grad():
        right = model(**given).logits
        fast.get_encoder().save_pretrained(tmp_path / "encoder")
        fast.save_pretrained(tmp_path / "whole")
        saved = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "whole")
        assert_same_bits(saved.eval()(**given).logits, right)
        assert_same_bits(hw.hf.restore(fast)(**given).logits, right)
    encoder = transformers.AutoConfig.from_pretrained(tmp_path / "encoder")
    assert encoder.architectures == ["LEDEncoder"]
    assert type(fast.get_encoder()) is modeling_led.LEDEncoder

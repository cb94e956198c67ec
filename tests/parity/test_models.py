"""Models of transformers and ours with their weights: the same numbers, to rounding."""

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import headwise as hw
from headwise.models import from_transformers
from tests.support.budget import assert_within_budget

BERT: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
}
MARIAN: dict[str, Any] = {
    "vocab_size": 31,
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 24,
    "pad_token_id": 30,
    "decoder_start_token_id": 30,
}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", BERT),
    "bert-tokens": ("BertForMaskedLM", "BertConfig", {**BERT, "hidden_act": "gelu_new"}),
    "bert-classes": ("BertForSequenceClassification", "BertConfig", {**BERT, "num_labels": 5}),
    "roberta": ("RobertaModel", "RobertaConfig", BERT),
    "roberta-tokens": ("RobertaForMaskedLM", "RobertaConfig", BERT),
    "roberta-classes": ("RobertaForSequenceClassification", "RobertaConfig", BERT),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 31, "n_embd": 12, "n_layer": 2, "n_head": 2, "n_positions": 24},
    ),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**BERT, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6},
    ),
    "llama-long": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            **BERT,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
        },
    ),
    "marian": ("MarianMTModel", "MarianConfig", {**MARIAN, "scale_embedding": True}),
    "marian-swish": ("MarianModel", "MarianConfig", {**MARIAN, "activation_function": "swish"}),
}
cases = pytest.mark.parametrize("name", CASES)


def theirs(name: str, **changes: Any) -> Any:
    """Build a model of transformers whose weights matter; its fixed tables stay."""
    model, config, numbers = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        settings = getattr(transformers, config)(**{**numbers, **changes})
        made = getattr(transformers, model)._from_config(settings, attn_implementation="eager")
        for part, weight in made.named_parameters():
            if not part.endswith("embed_positions.weight") and (
                weight.ndim > 1 or not weight.any()
            ):
                torch.nn.init.normal_(weight, std=0.3)
    return made.eval()


def asked(name: str) -> dict[str, Tensor]:
    """Return what a pass takes: a full sample, and one that is padded behind."""
    ids = torch.randint(3, 29, (2, 13), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    found = {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}
    if name.startswith("marian"):
        found["decoder_input_ids"] = ids[:, :5]
    return found


def answer(model: Any, given: dict[str, Tensor]) -> Tensor:
    """Return the first output at real tokens."""
    found: Tensor = model(**given)[0]
    mask = given["attention_mask"].bool()
    return found[mask] if found.shape[:2] == mask.shape else found


@cases
@torch.no_grad()
def test_outputs(name: str) -> None:
    model, given = theirs(name), asked(name)
    ours = from_transformers(model)
    exact = answer(copy.deepcopy(model).double(), given)
    plain = answer(model, given)
    assert_within_budget(answer(ours, given), exact=exact, plain=plain, label=name)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["gpt2", "llama", "marian"])
def test_generated_text(name: str, beams: int) -> None:
    model, given = theirs(name), asked(name)
    given.pop("decoder_input_ids", None)
    given = {key: value[:, :7] for key, value in given.items()}
    settings = {"max_new_tokens": 6, "num_beams": beams, "do_sample": False, "pad_token_id": 30}
    ours: Any = from_transformers(model)
    assert torch.equal(ours.generate(**given, **settings), model.generate(**given, **settings))


@pytest.mark.parametrize("name", ["bert-tokens", "gpt2", "marian"])
def test_gradients(name: str) -> None:
    """Of all weights at once, through the gradient of what the tokens are embedded to."""
    model, given = theirs(name), asked(name)
    ours = from_transformers(model)

    def gradient(of: Any) -> Tensor:
        torch.autograd.backward(answer(of, given).double().square().sum())
        found: Tensor = of.get_input_embeddings().weight.grad
        return found

    exact = gradient(copy.deepcopy(model).double())
    plain = gradient(model)
    assert_within_budget(gradient(ours), exact=exact, plain=plain, label=name)


def test_what_comes_along() -> None:
    model = theirs("marian").to(torch.bfloat16).train()
    model.generation_config.num_beams = 4
    ours = from_transformers(model)
    assert ours.dtype == torch.bfloat16
    assert ours.training
    assert ours.generation_config.num_beams == 4
    assert ours.generation_config.decoder_start_token_id == 30
    ours.lm_head.weight.data.zero_()
    assert model.lm_head.weight.any()


def test_another_attention_in_the_same_weights() -> None:
    model, given = theirs("bert-tokens"), asked("bert-tokens")
    ours = from_transformers(model, pattern=hw.Window(2, 2))
    far = from_transformers(model, pattern=hw.Window(20, 20))
    low = from_transformers(model, mechanism={"kind": "low_rank", "rank": 4})
    plain = answer(model, given)
    torch.testing.assert_close(answer(far, given), plain, rtol=0, atol=1e-5)
    assert not torch.allclose(answer(ours, given), plain, atol=1e-2)
    assert low.model.encoder.blocks[0].attention.mechanism.rank == 4


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "activation": (
        "bert",
        {"hidden_act": "mish"},
        "hidden_act must be one of relu, gelu, gelu_new, gelu_pytorch_tanh, silu, swish, got 'mis",
    ),
    "cross attention": (
        "gpt2",
        {"add_cross_attention": True},
        "add_cross_attention must be False, got True",
    ),
    "dropouts": ("gpt2", {"embd_pdrop": 0.3}, "embd_pdrop must be resid_pdrop = 0.1, got 0.3"),
    "two sizes": (
        "marian",
        {"decoder_ffn_dim": 16},
        "decoder_ffn_dim must be encoder_ffn_dim = 20, got 16",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_are_refused(name: str) -> None:
    family, changes, says = REFUSED[name]
    with pytest.raises(ValueError, match="from_transformers: ") as refused:
        from_transformers(theirs(family, **changes))
    assert says in str(refused.value)
    assert "\n  hint: this model has a part that ours do not" in str(refused.value)


def test_weights_that_are_refused() -> None:
    model = theirs("marian")
    torch.nn.init.normal_(model.model.encoder.embed_positions.weight)
    with pytest.raises(
        ValueError, match=r"the table model\.encoder\.embed_positions\.weight must be"
    ):
        from_transformers(model)
    model = theirs("bert-tokens")
    model.cls.predictions.bias = torch.nn.Parameter(torch.ones(31))
    with pytest.raises(ValueError, match=r"the tensor cls\.predictions.* must be equal to that of"):
        from_transformers(model)
    model = theirs("gpt2")
    model.transformer.h[0].extra = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"every tensor must be .*, got 'transformer\.h\.0\.extra"):
        from_transformers(model)
    with pytest.raises(ValueError, match=r"the tensor for .*blocks\.1\..* must be none, got \(12,"):
        from_transformers(theirs("gpt2"), num_layers=1)


def test_models_that_are_refused() -> None:
    model = transformers.BertForTokenClassification(transformers.BertConfig(**BERT))
    with pytest.raises(
        TypeError, match="no table for BertForTokenClassification\n  hint: there ar"
    ):
        from_transformers(model)
    with pytest.raises(TypeError, match="there is no table for Linear"):
        from_transformers(torch.nn.Linear(2, 2))

    class BertForMaskedLM(transformers.BertForMaskedLM):  # type: ignore[no-untyped-call]
        """A class of somebody's own, of the same name."""

    with pytest.raises(TypeError, match="there is no table for BertForMaskedLM"):
        from_transformers(BertForMaskedLM(transformers.BertConfig(**BERT)))

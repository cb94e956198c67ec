"""BigBird after ``accelerate``: the same answers and gradients, in memory linear in length."""

import subprocess
import sys
from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from headwise import hf
from tests.support.budget import assert_within_budget
from tests.support.hf_big_bird import SHORT, tiny, tokens


def derived(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the hidden states of real tokens, and what the embeddings and a query map learn."""
    output = model(**given).last_hidden_state[given["attention_mask"].bool()]
    upstream = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
    learned = {
        "embeddings": model.embeddings.word_embeddings.weight,
        "query": model.encoder.layer[0].attention.self.query.weight,
    }
    found = torch.autograd.grad(output, list(learned.values()), upstream.to(output.dtype))
    return {"output": output.detach(), **dict(zip(learned, found, strict=True))}


def assert_answers_alike(model: Any, given: dict[str, Tensor]) -> None:
    plain, exact = (derived(same, given) for same in (deepcopy(model), deepcopy(model).double()))
    for label, found in derived(hf.accelerate(model), given).items():
        assert_within_budget(found, exact=exact[label], plain=plain[label], label=label)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("padding", ["none", "right", "scattered"])
@pytest.mark.parametrize("length", [SHORT - 5, SHORT + 1, 53, 64])
def test_hidden_states_and_gradients(length: int, padding: str, training: bool) -> None:
    assert_answers_alike(tiny(training=training), tokens(length, padding))


@pytest.mark.parametrize("changes", [{"attention_type": "original_full"}, {"use_bias": False}])
def test_other_configurations(changes: dict[str, Any]) -> None:
    assert_answers_alike(tiny(**changes), tokens(53, "right"))


@pytest.mark.parametrize("training", [False, True])
def test_a_length_at_which_blocks_are_drawn_twice(training: bool) -> None:
    sizes = {"block_size": 64, "num_random_blocks": 3, "num_hidden_layers": 1}
    model = tiny(training=training, max_position_embeddings=1024, **sizes)
    assert_answers_alike(model, tokens(1021, "right"))


@pytest.mark.parametrize("training", [False, True])
def test_other_dtypes(training: bool) -> None:
    given = tokens(53, "right")
    real = given["attention_mask"].bool()
    for dtype in (torch.float64, torch.bfloat16):
        model = tiny(training=training).to(dtype)
        plain, exact = model(**given), deepcopy(model).double()(**given)
        found = hf.accelerate(model)(**given).last_hidden_state
        assert found.dtype == dtype
        assert_within_budget(
            found[real],
            exact=exact.last_hidden_state[real],
            plain=plain.last_hidden_state[real],
            label=str(dtype),
        )


def test_dropout_of_full_attention_follows_the_seed() -> None:
    model = tiny(training=True, attention_type="original_full", attention_probs_dropout_prob=0.5)
    hf.accelerate(model)
    given, found = tokens(SHORT), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(model(**given).last_hidden_state)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_checkpointed_layers_learn_the_same() -> None:
    model, given = hf.accelerate(tiny(training=True)), tokens(53, "right")
    learned = []
    for checkpointed in (False, True):
        if checkpointed:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model(**given).last_hidden_state[given["attention_mask"].bool()].square().sum().backward()
        learned.append(model.encoder.layer[0].attention.self.query.weight.grad.clone())
    torch.testing.assert_close(*learned)


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("cache", [transformers.DynamicCache, hf.Cache])
def test_a_decoder_generates_the_same(cache: Any, padding: str) -> None:
    kind, changes = transformers.BigBirdForCausalLM, {"is_decoder": True, "use_cache": True}
    model = tiny(kind, attention_type="original_full", **changes)
    given = tokens(9)
    if padding == "left":
        given["attention_mask"][1, :4] = 0
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    plain = model.generate(**given, **options)
    found = hf.accelerate(model).generate(**given, **options, cache=cache())
    assert torch.equal(found, plain)


def test_cross_attention() -> None:
    model = tiny(is_decoder=True, add_cross_attention=True, attention_type="original_full")
    given = tokens(11)
    given["encoder_hidden_states"] = torch.randn(2, 7, 24)
    given["encoder_attention_mask"] = torch.ones(2, 7, dtype=torch.long)
    given["encoder_attention_mask"][1, 5:] = 0
    plain = model(**given, use_cache=False).last_hidden_state
    found = hf.accelerate(model)(**given, use_cache=False).last_hidden_state
    torch.testing.assert_close(found, plain)


# 4 heads: the weights that transformers spells out would be 4.3 GB.
PROGRAM = """
import resource

import torch
import transformers

import headwise as hw

config = transformers.BigBirdConfig(
    vocab_size=61, hidden_size=64, num_attention_heads=4, num_hidden_layers=1,
    intermediate_size=128, max_position_embeddings=16_384,
)
model = hw.hf.accelerate(transformers.BigBirdModel(config)).train()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model(input_ids=torch.randint(3, 61, (1, 16_384))).last_hidden_state.sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6)
"""


@pytest.mark.slow
def test_16384_tokens_train_in_memory_linear_in_length() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout.split()[-1]) < 0.4

"""lengthen: trained positions copied over and over, reserved rows once, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import headwise as hw
from headwise import hf
from headwise.errors import BackendRefused, ShapeError
from tests.support.hf_tiny import PAIRS, answer, padded, tiny, tokens

# Families, their tables, rows in front that are no positions, and what counts them.
TABLES: dict[str, tuple[list[str], int, dict[str, int]]] = {
    "bert": (["embeddings.position_embeddings"], 0, {"max_position_embeddings": 0}),
    "roberta": (["embeddings.position_embeddings"], 1, {"max_position_embeddings": 1}),
    "distilbert": (["embeddings.position_embeddings"], 0, {"max_position_embeddings": 0}),
    "electra": (["embeddings.position_embeddings"], 0, {"max_position_embeddings": 0}),
    "mpnet": (["embeddings.position_embeddings"], 2, {"max_position_embeddings": 2}),
    "longformer": (["embeddings.position_embeddings"], 1, {"max_position_embeddings": 1}),
    "clip_text": (["embeddings.position_embedding"], 0, {"max_position_embeddings": 0}),
    "gpt2": (["transformer.wpe"], 0, {"n_positions": 0}),
    "opt": (["model.decoder.embed_positions"], 2, {"max_position_embeddings": 0}),
    "bart": (
        ["model.encoder.embed_positions", "model.decoder.embed_positions"],
        2,
        {"max_position_embeddings": 0},
    ),
    "led": (
        ["led.encoder.embed_positions", "led.decoder.embed_positions"],
        0,
        {"max_encoder_position_embeddings": 0, "max_decoder_position_embeddings": 0},
    ),
    "whisper": (["model.decoder.embed_positions"], 0, {"max_target_positions": 0}),
}
LENGTH = 149


@pytest.mark.parametrize("name", TABLES)
def test_positions_are_copied_over_and_over(name: str) -> None:
    tables, reserved, entries = TABLES[name]
    model = tiny(name, "eager")
    old = [model.get_submodule(table).weight.detach().clone() for table in tables]
    others = {k: w.clone() for k, w in model.state_dict().items()}
    assert hf.lengthen(model, LENGTH) is model
    for table, rows in zip(tables, old, strict=True):
        new = model.get_submodule(table)
        assert new.num_embeddings == LENGTH + reserved
        assert torch.equal(new.weight[:reserved], rows[:reserved])
        step = rows.shape[0] - reserved
        for place in (0, 1, step - 1, step, step + 1, 2 * step, LENGTH - 1):
            assert torch.equal(new.weight[reserved + place], rows[reserved + place % step])
        del others[f"{table}.weight"]
    for entry, extra in entries.items():
        assert getattr(model.config, entry) == LENGTH + extra
    now = model.state_dict()
    assert all(torch.equal(now[k], w) for k, w in others.items() if "_ids" not in k)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "bart", "longformer"])
def test_it_reads_more_and_the_old_length_as_before(name: str) -> None:
    model = tiny(name, "eager")
    short, long = _given(name, 50), _given(name, LENGTH)
    wanted = answer(model, short)
    hf.lengthen(model, LENGTH)
    torch.testing.assert_close(answer(model, short), wanted)
    assert answer(model, long).isfinite().all()


def test_texts_repeat_where_positions_do() -> None:
    """With a window of 0, a token knows its position alone."""
    model = hf.convert(hf.lengthen(tiny("roberta"), 126), hw.Window(0, 0))
    given = {"input_ids": torch.full((1, 126), 9)}
    found = answer(model, given)[0]
    torch.testing.assert_close(found[63:], found[:63])
    assert not torch.allclose(found[1], found[0], atol=1e-2)


def test_buffers_grow_and_token_types_stay_zero() -> None:
    held = hf.lengthen(tiny("roberta"), LENGTH).embeddings
    assert torch.equal(held.position_ids, torch.arange(LENGTH + 1).unsqueeze(0))
    assert torch.equal(held.token_type_ids, torch.zeros(1, LENGTH + 1, dtype=torch.long))
    assert not {"position_ids", "token_type_ids"} & held.state_dict().keys()


def test_it_is_saved_loaded_and_trained(tmp_path: Path) -> None:
    model = hf.lengthen(tiny("bert"), LENGTH)
    model.save_pretrained(tmp_path)
    other = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(
        answer(other, _given("bert", 100)), answer(model, _given("bert", 100))
    )
    grown = model.embeddings.position_embeddings.weight
    loss = answer(model.train(), _given("bert", LENGTH)).square().mean()
    assert bool(torch.autograd.grad(loss, grown)[0][-1].any())


def test_dtype_and_frozen_weights_stay() -> None:
    model = tiny("bert").to(torch.bfloat16).requires_grad_(False)
    weight = hf.lengthen(model, LENGTH).embeddings.position_embeddings.weight
    assert (weight.dtype, weight.requires_grad) == (torch.bfloat16, False)


def test_twice_is_once() -> None:
    twice = hf.lengthen(hf.lengthen(tiny("bert"), 128), 256)
    once = hf.lengthen(tiny("bert"), 256)
    for left, right in zip(twice.parameters(), once.parameters(), strict=True):
        assert torch.equal(left, right)


def test_tables_that_share_their_weight_still_do() -> None:
    model = tiny("bart")
    tables = (model.model.encoder.embed_positions, model.model.decoder.embed_positions)
    tables[1].weight = tables[0].weight
    hf.lengthen(model, LENGTH)
    assert tables[0].weight is tables[1].weight
    assert [table.num_embeddings for table in tables] == [LENGTH + 2, LENGTH + 2]


def test_a_mask_of_its_own_for_as_many_tokens() -> None:
    sizes: dict[str, Any] = {"vocab_size": 61, "hidden_size": 24, "num_heads": 6, "num_layers": 1}
    config = transformers.GPTNeoConfig(
        **sizes, attention_types=[[["global"], 1]], max_position_embeddings=32
    )
    model = transformers.GPTNeoForCausalLM(config)
    with pytest.raises(
        BackendRefused, match=r"h\.0\.attn\.attention \(GPTNeoSelfAttention\) keeps b"
    ):
        hf.lengthen(model, 64)
    assert model.transformer.wpe.num_embeddings == 32


@pytest.mark.parametrize("length", [0, -1, 20, 64, True, 99.0, "128"])
def test_no_more_than_there_are(length: Any) -> None:
    model = tiny("bert")
    with pytest.raises(
        ShapeError, match=r"have a position, 64 \(embeddings\.position_embeddings\)"
    ):
        hf.lengthen(model, length)
    assert model.config.max_position_embeddings == 64


@pytest.mark.parametrize("name", ["t5", "llama", "marian", "vit", "m2m_100"])
def test_models_without_learned_positions_of_text(name: str) -> None:
    with pytest.raises(BackendRefused, match=r"lengthen: \w+ has no table of learned positions of"):
        hf.lengthen(tiny(name), 128)
    with pytest.raises(BackendRefused, match="Linear has no table"):
        hf.lengthen(nn.Linear(2, 2), 128)


def _given(name: str, length: int) -> dict[str, Tensor]:
    given = {"input_ids": tokens(length=length), "attention_mask": padded("right", length=length)}
    if name in PAIRS:
        given["decoder_input_ids"] = tokens(length=length, seed=4)
    return given

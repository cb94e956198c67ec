"""drift: how far conversion moves the states, against the numbers worked out here."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

import headwise as hw
from headwise import hf
from headwise.errors import BackendRefused
from tests.support.hf_tiny import inputs, padded, tiny, tokens

NEAR = hw.Window(1, 1)


def states(model: Any, given: dict[str, Tensor], key: str) -> Any:
    with torch.no_grad():
        return model(**given, output_hidden_states=True)[key]


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_the_numbers(side: str) -> None:
    given = inputs("bert", side)
    before = states(tiny("bert"), given, "hidden_states")
    model = hf.convert(tiny("bert"), NEAR)
    after = states(model, given, "hidden_states")
    found = hf.drift(model, given)
    real = given["attention_mask"].bool()
    assert found.tokens == int(real.sum())
    assert [row.name for row in found] == ["embeddings", "layer 0", "layer 1"]
    for row, old, new in zip(found.rows, before, after, strict=True):
        distance = (new[real] - old[real]).norm() / old[real].norm()
        first, then = (torch.stack([x[i][real[i]].mean(0) for i in range(2)]) for x in (old, new))
        pooled = cosine_similarity(first, then, dim=-1).mean()
        cosine = cosine_similarity(new[real], old[real], dim=-1).mean()
        expected = torch.stack([distance, cosine, pooled])
        torch.testing.assert_close(torch.tensor(row[1:]), expected, rtol=0, atol=1e-5)


def test_nothing_moves_where_nothing_is_hidden() -> None:
    found = hf.drift(hf.convert(tiny("gpt2"), hw.Window(20, 20)), tokens())
    assert all(row.distance == 0.0 and row.cosine == pytest.approx(1.0) for row in found)
    assert found.rows[-1].name == "logits"


def test_a_pair_has_rows_of_both_sides() -> None:
    given = inputs("bart", "right")
    given["decoder_attention_mask"] = padded("right", length=5, padding=2)
    found = hf.drift(hf.convert(tiny("bart"), NEAR, layers=[2, 3]), given)
    assert [row.name for row in found] == [
        *(f"encoder {name}" for name in ("embeddings", "layer 0", "layer 1")),
        *(f"decoder {name}" for name in ("embeddings", "layer 0", "layer 1")),
        "logits",
    ]
    moved = [row.distance > 0 for row in found]
    assert moved == [False] * 4 + [True] * 3
    assert found.tokens == 18
    shown = str(found).splitlines()
    assert shown[0] == (
        "BartForConditionalGeneration: converted, against its own softmax attention, 18 tokens"
    )
    assert shown[1].split() == ["distance", "cosine", "pooled"]
    assert shown[2].split() == ["encoder", "embeddings", "0.0000", "1.000", "1.000"]
    assert len({len(line) for line in shown[1:]}) == 1


@pytest.mark.parametrize("name", ["whisper", "vit"])
def test_models_of_other_inputs(name: str) -> None:
    found = hf.drift(hf.convert(tiny(name), NEAR), inputs(name))
    assert len(found.rows) >= 3


def test_the_model_is_left_as_it_was() -> None:
    model = hf.convert(tiny("bert"), hw.nn.LinearAttention("elu"))
    model.train()
    model.encoder.layer[0].eval()
    modes = [part.training for part in model.modules()]
    first = hf.drift(model, inputs("bert"))
    assert hf.drift(model, inputs("bert")) == first
    assert [part.training for part in model.modules()] == modes
    assert all(weight.grad is None for weight in model.parameters())
    bad = {**inputs("bert"), "position_ids": torch.full((2, 11), 999)}
    with pytest.raises(RuntimeError, match="out of bounds"):
        hf.drift(model, bad)
    assert hf.drift(model, inputs("bert")) == first


def test_numbers_at_padding_count_nothing() -> None:
    given = {"inputs_embeds": torch.randn(2, 11, 24), "attention_mask": padded("right")}
    model = hf.convert(tiny("bert"), NEAR)
    found = hf.drift(model, given)
    given["inputs_embeds"][~given["attention_mask"].bool()] = torch.nan
    assert hf.drift(model, given) == found


def test_inputs_may_say_what_a_call_returns() -> None:
    model = hf.convert(tiny("bert"), NEAR)
    more = {"output_hidden_states": False, "return_dict": False}
    assert hf.drift(model, {**inputs("bert"), **more}) == hf.drift(model, inputs("bert"))


def test_padding_alone_counts_nothing() -> None:
    given = inputs("bert")
    given["attention_mask"][1] = 0
    found = hf.drift(hf.convert(tiny("bert"), NEAR), given)
    assert found.tokens == 11
    assert all(torch.tensor(row[1:]).isfinite().all() for row in found)


def test_refusals() -> None:
    with pytest.raises(BackendRefused, match=r"drift: nothing in BertModel is converted, so noth"):
        hf.drift(tiny("bert"), inputs("bert"))
    with pytest.raises(TypeError, match="drift: model must be a model of transformers, got Linear"):
        hf.drift(nn.Linear(2, 2), tokens())
    wrong: Any = [1, 2]
    with pytest.raises(
        TypeError, match="drift: inputs must be what the model takes by name, got l"
    ):
        hf.drift(hf.convert(tiny("bert"), NEAR), wrong)

"""Calls of models that are refused, and calls of no size that are not."""

from typing import Any

import pytest
import torch

import headwise as hw
from headwise import models
from tests.support.own_models import HEADS, given, tiny, tokens

TOKENS: dict[str, tuple[dict[str, Any], str]] = {
    "one text": (
        {"input_ids": torch.arange(6)},
        "token numbers must be (batch, length) of torch.int64 or torch.int32, got (6,) of "
        "torch.int64\n  hint: ids[None] makes",
    ),
    "vectors": ({"input_ids": torch.zeros(2, 6)}, "got (2, 6) of torch.float32\n  hint: ids[No"),
    "one text of vectors": (
        {"inputs_embeds": torch.zeros(6, 12)},
        "inputs_embeds must be (batch, length, 12), got (6, 12)\n  hint: give one sample a dim",
    ),
    "other vectors": (
        {"inputs_embeds": torch.zeros(2, 6, 13)},
        "inputs_embeds must be (batch, length, 12), got (2, 6, 13)",
    ),
}


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize("kind", HEADS)
def test_tokens_of_another_form(kind: str, name: str) -> None:
    asked, says = TOKENS[name]
    for prefix in ("",) if kind != "encoder_decoder" else ("", "decoder_"):
        named = {prefix + key: value for key, value in asked.items()}
        rest = {} if not prefix else {"input_ids": tokens()}
        with pytest.raises(hw.ShapeError) as refused:
            tiny(kind)(**named, **rest)
        assert says in str(refused.value)


@pytest.mark.parametrize("kind", HEADS)
def test_labels_of_another_form(kind: str) -> None:
    asked = given(kind)
    ids = list(asked.values())[-1]
    with pytest.raises(hw.ShapeError) as refused:
        tiny(kind)(**asked, labels=ids.T)
    says = (
        f"labels must be {tuple(ids.shape)}, one for each token, got {tuple(ids.T.shape)}\n  hint"
    )
    assert says in str(refused.value)


def test_a_source_that_was_encoded_before_is_not_given_twice() -> None:
    model, ids = tiny("encoder_decoder"), tokens()
    encoded = model.get_encoder()(ids)
    with pytest.raises(
        TypeError, match=r"nothing that reads input_ids\n  hint: encoder_outputs are"
    ):
        model(ids, encoder_outputs=encoded, decoder_input_ids=ids)
    with pytest.raises(TypeError, match=r"or what DataCollatorForSeq2Seq|or labels, or what Data"):
        model(ids)


@pytest.mark.parametrize("changes", [{"positions": "learned"}, {"mechanism": "linear"}])
@torch.no_grad()
def test_calls_of_no_size(changes: dict[str, Any]) -> None:
    model, ids = tiny(**changes), tokens(2, 9)
    places = torch.arange(9)[None]
    assert model(ids[:0], position_ids=places.expand(0, 9)).logits.shape == (0, 9, 31)
    assert model(ids[:0], position_ids=places).logits.shape == (0, 9, 31)
    mask = torch.ones_like(ids)
    assert model(ids[:, :0], attention_mask=mask[:, :0]).logits.shape == (2, 0, 31)
    cache = models.Cache()
    cache.batch_repeat_interleave(3)
    assert cache.batch_size == -1

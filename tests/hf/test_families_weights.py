"""Attention weights come out on request, and the answers stay those of the fast path (K16)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import hf
from headwise.hf import attention as ours_file
from headwise.ops import attention_weights
from tests.support.hf_tiny import (
    DECODERS,
    ENCODERS,
    FAMILIES,
    PAIRS,
    answer,
    both,
    inputs,
    tiny,
    tokens,
)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("batch", ["whole", "padded"])
def test_they_are_those_of_eager_attention(name: str, batch: str) -> None:
    ours, theirs = both(name)
    given = inputs(name, "none" if batch == "whole" else "left" if name in DECODERS else "right")
    with torch.no_grad():
        mine, right = (model(**given, output_attentions=True) for model in (ours, theirs))
        usual = answer(ours, given)
    kinds = [kind for kind in right if "attentions" in kind]
    assert kinds
    for kind in kinds:
        assert len(mine[kind]) == len(right[kind])
        for one, other in zip(mine[kind], right[kind], strict=True):
            assert one.shape == other.shape
            rows = _real_rows(kind, one, given, name)
            torch.testing.assert_close(one.transpose(1, 2)[rows], other.transpose(1, 2)[rows])
    logits = "logits" if hasattr(mine, "logits") else "last_hidden_state"
    if FAMILIES[name].through == "headwise":
        assert torch.equal(mine[logits], usual)


@pytest.mark.parametrize("name", [name for name in ENCODERS + DECODERS if name != "longformer"])
def test_their_sums_and_zeros(name: str) -> None:
    """Rows sum to 1, less where a sink takes its share; padding gets nothing and attends nowhere.

    Rows of accelerated families are transformers' own, which average everything where they may
    attend nowhere; those of Longformer speak of its window.
    """
    ours = tiny(name)
    seen = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    real = (seen if name in DECODERS else seen.flip(1)).bool()
    with torch.no_grad():
        found = ours(tokens(length=5), attention_mask=real.long(), output_attentions=True)
    for weights in found.attentions:
        assert weights.shape == (2, 6, 5, 5)
        rows, sums = weights.transpose(1, 2), weights.sum(-1).transpose(1, 2)[real]
        hidden = ~real[:, None, None].expand_as(rows)[real]
        assert not rows[real][hidden].any()
        if name == "gpt_oss":
            assert bool((sums < 1).all())
        else:
            torch.testing.assert_close(sums, torch.ones_like(sums))
        if name in DECODERS and FAMILIES[name].through == "headwise":
            assert not rows[~real].any()


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_only_calls_that_ask_compute_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = attention_weights

    def counted(*given: Any, **extras: Any) -> Tensor:
        asked.append(given[0].shape)
        return real(*given, **extras)

    monkeypatch.setattr(ours_file, "attention_weights", counted)
    model, given = tiny(name), inputs(name)
    answer(model, given)
    assert not asked
    model(**given, output_attentions=True)
    assert len(asked) == len(hf.report(model))


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", PAIRS)
def test_generate_gives_them_too(name: str, beams: int) -> None:
    ours, theirs = both(name)
    given = {"input_ids": tokens(), "num_beams": beams, "max_new_tokens": 3, "eos_token_id": None}
    wanted = {"output_attentions": True, "return_dict_in_generate": True, "do_sample": False}
    mine, right = (model.generate(**given, **wanted) for model in (ours, theirs))
    for kind in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        torch.testing.assert_close(mine[kind], right[kind])
    assert torch.equal(mine.sequences, ours.generate(**given, do_sample=False))


def test_weights_times_values_are_the_output() -> None:
    """Of one layer of BERT, computed by hand from what the model returns."""
    model = tiny("bert", num_hidden_layers=1)
    given = inputs("bert", "right")
    inner = model.encoder.layer[0].attention.self
    outputs: list[Tensor] = []
    inner.register_forward_hook(lambda _, __, out: outputs.append(out[0]))
    with torch.no_grad():
        found = model(**given, output_attentions=True, output_hidden_states=True)
        values = inner.value(found.hidden_states[0]).view(2, 11, 6, 4).transpose(1, 2)
    by_hand = (found.attentions[0] @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(outputs[0], by_hand)


def _real_rows(kind: str, weights: Tensor, given: dict[str, Tensor], name: str) -> Tensor:
    """Return which queries are real tokens, (batch, q_len)."""
    own = name in ENCODERS + DECODERS or kind.startswith("encoder")
    if own and "attention_mask" in given:
        return given["attention_mask"].bool()
    return torch.ones(weights.shape[0], weights.shape[2], dtype=torch.bool)

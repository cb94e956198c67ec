"""BigBird after ``accelerate``: which calls go to transformers' own code, switches, copies."""

from collections.abc import Callable
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.big_bird import modeling_big_bird as theirs

from headwise import _native, hf
from headwise.hf.accelerated.big_bird import FastBlockSparseAttention, FastSelfAttention
from tests.support.budget import assert_same_bits
from tests.support.hf_big_bird import BLOCK, SHORT, tiny, tokens


def forbidden(*_: object, **__: object) -> None:
    raise AssertionError("transformers' own attention was asked")


def test_the_original_code_is_only_asked_for_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = tiny(), tokens(53)
    plain = model(**given, output_attentions=True, output_hidden_states=True)
    hf.accelerate(model)
    asked = model(**given, output_attentions=True)
    torch.testing.assert_close(asked.attentions, plain.attentions)
    torch.testing.assert_close(asked.last_hidden_state, plain.last_hidden_state)
    monkeypatch.setattr(theirs.BigBirdBlockSparseAttention, "forward", forbidden)
    states = model(**given, output_hidden_states=True).hidden_states
    torch.testing.assert_close(states, plain.hidden_states)
    with pytest.raises(AssertionError, match="own attention was asked"):
        model(**given, output_attentions=True)


def test_full_attention_gives_weights_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = tiny(), tokens(SHORT, "right")
    plain = model(**given, output_attentions=True)
    hf.accelerate(model)
    monkeypatch.setattr(theirs.BigBirdSelfAttention, "forward", forbidden)
    found = model(**given, output_attentions=True)
    torch.testing.assert_close(found.attentions, plain.attentions)
    torch.testing.assert_close(found.last_hidden_state, plain.last_hidden_state)


Masks = dict[str, Any]


def masks_of(model: Any, real: Tensor) -> Masks:
    blocked, band, rows, columns = model.create_masks_for_block_sparse_attn(real, BLOCK)
    given = {"band_mask": band, "from_mask": rows, "to_mask": columns}
    return {**given, "from_blocked_mask": blocked, "to_blocked_mask": blocked}


def half_real(masks: Masks) -> Masks:
    return {name: mask / 2 for name, mask in masks.items()}


def one_differs(name: str) -> Callable[[Masks], Masks]:
    def changed(masks: Masks) -> Masks:
        mask = masks[name].clone()
        mask.flatten()[17] = 0
        return {**masks, name: mask}

    return changed


@pytest.mark.parametrize(
    "change",
    [half_real, *(one_differs(name) for name in ("band_mask", "from_mask", "to_blocked_mask"))],
)
def test_masks_that_no_model_makes_go_to_the_original(change: Callable[[Masks], Masks]) -> None:
    model = hf.accelerate(tiny())
    attention, x = model.encoder.layer[0].attention.self, torch.randn(2, 48, 24)
    masks = change(masks_of(model, torch.ones(2, 48)))
    found, weights = attention(x, **masks)
    assert weights is not None
    assert_same_bits(found, theirs.BigBirdBlockSparseAttention.forward(attention, x, **masks)[0])


@pytest.mark.parametrize("training", [False, True])
def test_padded_queries_get_zeros_as_there(training: bool) -> None:
    model = tiny(training=training)
    x, real = torch.randn(2, 56, 24), tokens(56, "scattered")["attention_mask"].float()
    attention, masks = model.encoder.layer[1].attention.self, masks_of(model, real)
    plain = attention(x, **masks)[0]
    hf.accelerate(model)
    found = attention(x, **masks)[0]
    torch.testing.assert_close(found, plain)
    assert not bool(found[real == 0].any())


@pytest.mark.parametrize(("length", "text"), [(46, "multiple of block size"), (12, "invalid")])
def test_what_transformers_refuses_is_refused(length: int, text: str) -> None:
    model = hf.accelerate(tiny())
    masks = masks_of(model, torch.ones(2, length // BLOCK * BLOCK))
    with pytest.raises((ValueError, RuntimeError), match=text):
        model.encoder.layer[0].attention.self(torch.randn(2, length, 24), **masks)


def test_a_switch_to_full_attention_and_back_stays_fast() -> None:
    model = tiny()
    given, short = tokens(53), tokens(SHORT)
    plain = model(**given).last_hidden_state
    hf.accelerate(model)
    kinds = []
    for step in (given, short, None):
        model.set_attention_type("block_sparse") if step is None else model(**step)
        kinds.append({type(layer.attention.self) for layer in model.encoder.layer})
    assert kinds == [{FastBlockSparseAttention}, {FastSelfAttention}, {FastBlockSparseAttention}]
    torch.testing.assert_close(model(**given).last_hidden_state, plain)
    hf.restore(model)
    assert not any("headwise" in type(part).__module__ for part in model.modules())
    assert_same_bits(model(**given).last_hidden_state, plain)


def test_training_leaves_numpy_where_transformers_does() -> None:
    model, given = tiny(training=True), tokens(53)
    states = []
    for run in (model, hf.accelerate(deepcopy(model))):
        run(**given)
        states.append(np.random.rand())
    assert states[0] == states[1]


def test_copies_and_files(tmp_path: Path) -> None:
    model, given = hf.accelerate(tiny()), tokens(53)
    found, written = model(**given).last_hidden_state, BytesIO()
    torch.save(model, written)
    written.seek(0)
    for again in (deepcopy(model), torch.load(written, weights_only=False)):
        assert isinstance(again.encoder.layer[0].attention.self, FastBlockSparseAttention)
        assert_same_bits(again(**given).last_hidden_state, found)
    model.save_pretrained(tmp_path)
    loaded = transformers.BigBirdModel.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(**given).last_hidden_state, found)


def test_the_report_says_who_is_asked() -> None:
    for row in hf.report(hf.accelerate(tiny())):
        assert row.served
        assert row.kind == "BigBirdBlockSparseAttention"
        assert row.reason.startswith("calls that ask for weights")


def test_sparse_attention_is_left_without_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = tiny(), tokens(53)
    plain = model(**given).last_hidden_state
    monkeypatch.setattr(_native, "kernels", None)
    hf.accelerate(model)
    assert type(model.encoder.layer[0].attention.self) is theirs.BigBirdBlockSparseAttention
    assert {(row.served, "no compiled core" in row.reason) for row in hf.report(model)} == {
        (False, True)
    }
    torch.testing.assert_close(model(**given).last_hidden_state, plain)

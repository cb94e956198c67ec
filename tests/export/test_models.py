"""Whole models as ONNX files: an accelerated BERT, and a decoder of headwise."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

import headwise as hw
from tests.export.sessions import OPEN, Session

pytestmark = pytest.mark.slow


def given(batch: int, length: int) -> tuple[Tensor, Tensor]:
    real = (torch.arange(length) < torch.randint(1, length + 1, (batch, 1))).long()
    real[0] = 1
    return torch.randint(0, 50, (batch, length)), real


@pytest.mark.filterwarnings("ignore")
def test_an_accelerated_bert() -> None:
    sizes: Any = {"hidden_size": 20, "num_attention_heads": 4, "intermediate_size": 37}
    config = BertConfig(vocab_size=50, num_hidden_layers=1, max_position_embeddings=41, **sizes)
    model: Any = BertModel(config, add_pooling_layer=False)
    model.eval()
    names = ("input_ids", "attention_mask")
    with torch.no_grad():
        wanted = [model(*pair).last_hidden_state for pair in map(_given, SIZES)]
        hw.hf.accelerate(model)
        made = torch.export.export(
            model,
            (),
            dict(zip(names, given(2, 9), strict=True)),
            dynamic_shapes=dict.fromkeys(names, OPEN),
        )
        exported = Session(hw.export.onnx(made))
        assert exported.nodes.count("Attention") == 1
        for size, output in zip(SIZES, wanted, strict=True):
            ids, real = _given(size)
            outputs = made.module()(input_ids=ids, attention_mask=real).last_hidden_state
            for found in (outputs, exported(ids, real)[0]):
                torch.testing.assert_close(found[real > 0], output[real > 0])


SIZES = [(2, 9), (3, 13), (1, 41)]


def _given(size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    torch.manual_seed(sum(size))
    return given(*size)


@pytest.mark.filterwarnings("ignore")
def test_a_decoder_of_ours() -> None:
    sizes: Any = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4}
    model: Any = hw.models.HeadwiseForCausalLM(hw.models.HeadwiseConfig(vocab_size=50, **sizes))
    model.eval()
    ids, real = given(2, 9)
    called = {"input_ids": ids, "attention_mask": real, "use_cache": False}
    shapes = {"input_ids": OPEN, "attention_mask": OPEN, "use_cache": None}
    with torch.no_grad():
        made = torch.export.export(model, (), called, dynamic_shapes=shapes)
        exported = Session(hw.export.onnx(made, optimize=False))
        for ids, real in map(_given, SIZES):
            called = {"input_ids": ids, "attention_mask": real, "use_cache": False}
            wanted = model(**called).logits[real > 0]
            torch.testing.assert_close(made.module()(**called).logits[real > 0], wanted)
            torch.testing.assert_close(exported(ids, real)[0][real > 0], wanted)
            whole = torch.ones_like(real)
            full = {**called, "attention_mask": whole}
            changed = torch.where(torch.arange(ids.shape[1]) == ids.shape[1] - 1, ids + 1, ids) % 50
            ahead = exported(changed, whole)[0][:, :-1]
            torch.testing.assert_close(ahead, model(**full).logits[:, :-1])

"""Pipelines, and modules that hold a model, around one that leaves padding out."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from headwise import hf
from headwise.hf.accelerated.swap import is_packed
from tests.support.hf_tiny import FAMILIES, padded, tiny, tokens

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnop"]
TEXTS = ["a b c d e f g h i", "k", "c a [MASK] e p", "o n m [MASK]"]
TASKS = {
    "feature-extraction": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
}


class Embedder(nn.Module):
    """Holds a model and makes one vector of a text, as libraries of sentence embeddings do."""

    def __init__(self, model: nn.Module, first: bool) -> None:
        super().__init__()
        self.model, self.first = model, first

    def forward(self, **given: Tensor) -> Tensor:
        states: Tensor = self.model(**given).last_hidden_state
        if self.first:
            return states[:, 0]
        real = given["attention_mask"].unsqueeze(2)
        return (states * real).sum(1) / real.sum(1)


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert"])
@pytest.mark.parametrize("first", [False, True])
def test_sentence_embeddings(name: str, first: bool) -> None:
    before = Embedder(tiny(name, "eager"), first)
    after = hf.accelerate(copy.deepcopy(before), unpad=True)
    assert sum(is_packed(part) for part in after.modules()) == 2
    given = {"input_ids": tokens(3), "attention_mask": padded("right", 3)}
    torch.testing.assert_close(after(**given), before(**given))
    given["attention_mask"] = padded("left", 3)
    if first:
        assert not after(**given)[-1].any()
    else:
        torch.testing.assert_close(after(**given), before(**given))


@pytest.mark.parametrize("task", TASKS)
def test_pipelines(task: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    tokenizer: Any = transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt"))
    numbers = {**FAMILIES["bert"].numbers, "vocab_size": len(tokenizer)}
    torch.manual_seed(5)
    kind = getattr(transformers, TASKS[task])
    before = kind.from_config(transformers.BertConfig(**numbers)).eval()
    texts = [text for text in TEXTS if task != "fill-mask" or "[MASK]" in text]
    found = []
    for model in (before, hf.accelerate(copy.deepcopy(before), unpad=True)):
        run: Any = transformers.pipeline(task, model=model, tokenizer=tokenizer)  # type: ignore[call-overload]
        found.append(run(texts, batch_size=len(texts)))
    if task == "feature-extraction":
        # This pipeline hands out what a batch has at padding, too.
        real = [len(text.split()) + 2 for text in texts]
        assert not any(_numbers([part[0][n:] for part, n in zip(found[1], real, strict=True)]))
        found = [[part[0][:n] for part, n in zip(run, real, strict=True)] for run in found]
    assert [_words(part) for part in found[0]] == [_words(part) for part in found[1]]
    for one, other in zip(*(_numbers(part) for part in found), strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


def _words(found: Any) -> Any:
    if isinstance(found, dict):
        return [value for value in found.values() if isinstance(value, (str, int))]
    return [_words(part) for part in found] if isinstance(found, list) else None


def _numbers(found: Any) -> list[float]:
    if isinstance(found, dict):
        return _numbers(list(found.values()))
    if isinstance(found, (list, tuple)):
        return [number for part in found for number in _numbers(part)]
    if isinstance(found, Tensor):
        return [*found.flatten().tolist()]
    return [float(found)] if isinstance(found, float) or hasattr(found, "dtype") else []

"""A trained sentence encoder, BERT with 12 heads, against torch's attention."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.cli.models import Source, encoder, source
from headwise.cli.sentence_vectors import mean_of_real

pytestmark = [pytest.mark.real, pytest.mark.slow]

TEXTS = [
    "Attention weighs what each word offers against what every other word looks for.",
    "Short.",
    "The seagulls argued all morning, while the tide carried off one of the two sandals.",
    "A sentence of middling length, with a comma.",
]


@pytest.fixture(scope="module")
def opened(minilm: Path) -> Source:
    return source(str(minilm))


@pytest.fixture(scope="module")
def pair(opened: Source) -> tuple[Any, Any]:
    return encoder(opened, "headwise"), encoder(opened, "sdpa")


def states_of(model: Any, tokens: Any) -> Tensor:
    with torch.inference_mode():
        states: Tensor = model(**tokens).last_hidden_state
    return states


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batches_equal_sdpa(side: str, opened: Source, pair: tuple[Any, Any]) -> None:
    tokens = opened.tokenizer(TEXTS, padding=True, padding_side=side, return_tensors="pt")
    mask = tokens["attention_mask"]
    assert mask[1, 0 if side == "left" else -1] == 0
    ours, theirs = (states_of(model, tokens) for model in pair)
    real = mask.bool()
    torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=0)
    vectors = (mean_of_real(states, mask) for states in (ours, theirs))
    torch.testing.assert_close(*vectors, atol=1e-5, rtol=0)


def test_a_text_alone_equals_sdpa(opened: Source, pair: tuple[Any, Any]) -> None:
    for text in TEXTS:
        tokens = opened.tokenizer(text, return_tensors="pt")
        ours, theirs = (states_of(model, tokens) for model in pair)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_padding_does_not_reach_the_vector(opened: Source, pair: tuple[Any, Any]) -> None:
    model, _ = pair
    together = opened.tokenizer(TEXTS, padding=True, return_tensors="pt")
    padded = mean_of_real(states_of(model, together), together["attention_mask"])
    for number, text in enumerate(TEXTS):
        tokens = opened.tokenizer(text, return_tensors="pt")
        alone = mean_of_real(states_of(model, tokens), tokens["attention_mask"])[0]
        torch.testing.assert_close(padded[number], alone, atol=1e-5, rtol=0)

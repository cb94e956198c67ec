"""What another attention does to a trained sentence encoder that reads a real text."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise import hf
from headwise.cli.models import Source, encoder, source

pytestmark = [pytest.mark.real, pytest.mark.slow]

PASSAGES, LENGTH = 2, 512


@pytest.fixture(scope="module")
def opened(minilm: Path) -> Source:
    return source(str(minilm))


@pytest.fixture(scope="module")
def model(opened: Source) -> Any:
    return encoder(opened, "headwise")


@pytest.fixture(scope="module")
def text(opened: Source) -> Tensor:
    """Return passages of Python's documentation, which comes with Python."""
    from pydoc_data.topics import topics

    cut = opened.tokenizer(
        "\n".join(topics[name] for name in sorted(topics)),
        truncation=True,
        max_length=LENGTH,
        return_overflowing_tokens=True,
    )
    whole = [passage for passage in cut["input_ids"] if len(passage) == LENGTH]
    return torch.tensor(whole[: 16 * PASSAGES : 16])


@pytest.mark.parametrize(
    ("mechanism", "least", "most"),
    [
        (hw.patterns.longformer(256, [0]), 0.95, 0.995),
        (hw.patterns.longformer(128, [0]), 0.92, 0.98),
        (hw.patterns.bigbird(32), 0.95, 0.995),
        (hw.nn.LowRank(256, 512, projection="mean"), 0.72, 0.90),
        (lambda layer: hw.nn.RandomFeatures(512, seed=layer), 0.55, 0.80),
    ],
    ids=["longformer-256", "longformer-128", "bigbird", "means", "random-features"],
)
def test_sentence_vectors(
    mechanism: Any, least: float, most: float, model: Any, text: Tensor
) -> None:
    found = hf.drift(hf.convert(model, mechanism), text)
    assert found.tokens == PASSAGES * LENGTH
    assert found.rows[0].distance == 0.0
    assert least < found.rows[-1].pooled < most


def test_back_to_what_it_was(opened: Source, model: Any, text: Tensor) -> None:
    hf.convert(model, hw.Window(64, 64))
    with torch.inference_mode():
        found, wanted = (
            part(text[:1, :64]).last_hidden_state
            for part in (hf.restore(model), encoder(opened, "headwise"))
        )
    assert torch.equal(found, wanted)

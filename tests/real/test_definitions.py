"""A trained sentence encoder finds the definition of a word among those of 500 words."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import hf
from headwise.cli.models import Source, encoder, source
from headwise.cli.sentence_vectors import mean_of_real
from headwise.ops import tally
from tests.support.debian_packages import WORDNET, unpacked

pytestmark = [pytest.mark.real, pytest.mark.slow]

COUNT = 500


@pytest.fixture(scope="module")
def entries() -> list[tuple[str, str]]:
    """Nouns and what they mean, evenly through the file, which goes from one field to the next."""
    found = []
    for line in (unpacked(WORDNET) / "usr/share/wordnet/data.noun").read_text().splitlines():
        if not line.startswith("  "):
            sense, _, gloss = line.partition(" | ")
            found.append((sense.split()[4].replace("_", " "), gloss.split(";")[0].strip()))
    return found[:: len(found) // COUNT][:COUNT]


@pytest.fixture(scope="module")
def opened(minilm: Path) -> Source:
    return source(str(minilm))


@pytest.fixture(scope="module")
def theirs(opened: Source) -> Any:
    return encoder(opened, "eager")


def _vectors(model: Any, opened: Source, texts: list[str], size: int = 32) -> Tensor:
    parts = []
    for start in range(0, len(texts), size):
        tokens = opened.tokenizer(texts[start : start + size], padding=True, return_tensors="pt")
        with torch.inference_mode():
            states = model(**tokens).last_hidden_state
        parts.append(mean_of_real(states, tokens["attention_mask"]))
    return torch.cat(parts)


@pytest.fixture(scope="module")
def plain(theirs: Any, opened: Source, entries: list[tuple[str, str]]) -> list[Tensor]:
    return [_vectors(theirs, opened, list(texts)) for texts in zip(*entries, strict=True)]


@pytest.mark.parametrize("unpad", [False, True])
def test_as_many_are_found_as_before(
    unpad: bool, theirs: Any, plain: list[Tensor], opened: Source, entries: list[tuple[str, str]]
) -> None:
    ours = hf.accelerate(copy.deepcopy(theirs), unpad=unpad)
    with tally() as ran:
        found = [_vectors(ours, opened, list(texts)) for texts in zip(*entries, strict=True)]
    assert set(ran) == {"native"}
    for actual, right in zip(found, plain, strict=True):
        torch.testing.assert_close(actual, right, atol=2e-6, rtol=0)
    words, meanings = found
    first = (words @ meanings.T).argmax(1)
    assert torch.equal(first, (plain[0] @ plain[1].T).argmax(1))
    assert (first == torch.arange(COUNT)).float().mean() >= 0.39

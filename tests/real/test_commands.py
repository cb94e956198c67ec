"""The commands with their own models, as ``make demo`` and the README have them."""

import json

import pytest

from tests.cli.typed import typed

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_generate_knows_the_capital_of_france() -> None:
    result = typed("generate", "The capital of France is", "--max-new-tokens", "8", "--stats")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(" Paris")
    assert "decode tokens per second" in result.stderr


def test_generate_refuses_more_than_the_context() -> None:
    result = typed("generate", "word " * 8300)
    assert result.exit_code == 2
    assert "a context of 8192; shorten the prompt" in result.stderr


def test_embed_finds_the_sentence_that_means_the_same() -> None:
    texts = ("A cat sat on the mat.", "A kitten rests on a rug.", "Share prices fell sharply.")
    result = typed("embed", *texts, "--json")
    assert result.exit_code == 0, result.output
    (_, alike, other), *_ = json.loads(result.stdout)["similarities"]
    assert alike > 0.5
    assert other < 0.2

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.cli.typed import typed

TEXTS = ("a cat", "a kitten sits on the mat", "shares fell")


def as_json(*words: str) -> dict[str, Any]:
    result = typed("embed", *words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_vectors_are_means_of_token_vectors(reader: Path) -> None:
    model = transformers.AutoModel.from_pretrained(reader, attn_implementation="sdpa").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(reader)
    vectors = torch.tensor(as_json(str(reader), *TEXTS)["vectors"])
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        mean = states.mean(0)
        torch.testing.assert_close(vector, mean / mean.norm(), atol=1e-6, rtol=0)


def test_similarities_are_cosines(reader: Path) -> None:
    found = as_json(str(reader), *TEXTS)
    vectors = torch.tensor(found["vectors"])
    torch.testing.assert_close(torch.tensor(found["similarities"]), vectors @ vectors.T)
    assert found["texts"] == list(TEXTS)


def test_more_texts_than_fit_together(reader: Path) -> None:
    texts = [f"{'long ' * (n % 3)}text {n}" for n in range(19)]
    together = torch.tensor(as_json(str(reader), *texts)["vectors"])
    alone = torch.tensor(as_json(str(reader), texts[17])["vectors"])
    torch.testing.assert_close(together[17:18], alone, atol=1e-6, rtol=0)


def test_the_table_is_plain_when_piped(reader: Path) -> None:
    result = typed("embed", str(reader), "same", "same")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines() if line] == [
        ["text", "1", "2"],
        ["1", "same", "1.000", "1.000"],
        ["2", "same", "1.000", "1.000"],
    ]


def test_square_brackets_and_long_texts_in_the_table(reader: Path) -> None:
    result = typed("embed", "--model", str(reader), "[bold]x[/bold]", "y" * 60)
    assert "1 [bold]x[/bold]" in result.stdout
    assert f"2 {'y' * 39}…" in result.stdout


def test_the_option_names_the_model_and_all_else_is_text(reader: Path) -> None:
    first = as_json(str(reader), "and/or", "x")
    named = as_json("--model", str(reader), "and/or", "x")
    assert named == first
    assert named["texts"] == ["and/or", "x"]

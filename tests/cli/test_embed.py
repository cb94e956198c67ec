import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from headwise.cli import output
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


def test_no_number_is_cut_where_a_terminal_is_narrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    rows = output.table("")
    for _ in range(20):
        rows.add_column("no", no_wrap=True)
    rows.add_row(*["-0.123"] * 20)
    output.show(rows)
    assert terminal.getvalue().count("-0.123") == 20


@pytest.mark.parametrize(
    ("mode", "dense", "says"),
    [
        ("mean_tokens", [], ""),
        ("cls_token", [], "Pooling (cls_token)"),
        ("cls_token", ["Dense"], "Pooling (cls_token), Dense"),
    ],
)
def test_a_folder_that_is_meant_to_be_used_otherwise(
    mode: str, dense: list[str], says: str, reader: Path, tmp_path: Path
) -> None:
    shutil.copytree(reader, tmp_path, dirs_exist_ok=True)
    (tmp_path / "1_Pooling").mkdir()
    asked = {"word_embedding_dimension": 30, "include_prompt": True, f"pooling_mode_{mode}": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(asked))
    kinds = {"Transformer": "", "Pooling": "1_Pooling", **dict.fromkeys(dense, "2")}
    modules = [{"type": f"sentence.models.{kind}", "path": kinds[kind]} for kind in kinds]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    result = typed("embed", str(tmp_path), "hello")
    assert result.exit_code == 0
    told = f"headwise embed: {tmp_path} is meant to be used with {says}; these vectors are means of"
    assert result.stderr.startswith(told) if says else result.stderr == ""


def test_the_option_names_the_model_and_all_else_is_text(reader: Path) -> None:
    first = as_json(str(reader), "and/or", "x")
    named = as_json("--model", str(reader), "and/or", "x")
    assert named == first
    assert named["texts"] == ["and/or", "x"]

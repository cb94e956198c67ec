"""The example of a model of one's own: it learns, comes back from its folder, and goes on."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return import_module("own_model")


def test_what_it_prints(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["own_model.py", "--steps", "5"])
    program.main()
    first, begun, went_on = capsys.readouterr().out.splitlines()
    assert first.startswith("loss 2.")
    assert len(begun.split()) == 1 + 12
    assert len(went_on.split()) == 2 + 20


def test_layers_are_what_was_asked(program: Any) -> None:
    made = program.configuration(["full", "linear", "window(3, 0)"])
    assert made.pattern == [None, None, "window(3, 0)"]
    assert [each and each["kind"] for each in made.mechanism] == [None, "linear", None]


def test_rows_count_up_and_down(program: Any) -> None:
    rows = program.counts(5, 40)
    assert ((rows[:, 1:] - rows[:, :-1]).abs() == 1).all()
    assert torch.equal(rows.amax(), torch.tensor(15))


def test_a_wrong_count_is_refused(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["own_model.py", "--steps", "0"])
    with pytest.raises(SystemExit):
        program.main()
    assert "--steps must be at least 1, got 0" in capsys.readouterr().err

"""The example that replaces torch's layers: what is swapped, what stays, what it prints."""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headwise as hw

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ("--steps", "4", "--batch", "2", "--block", "3", "--width", "24", "--heads", "2")

Typed = Callable[..., str]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return import_module("swap_attention")


@pytest.fixture
def typed(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Return a function that runs the example in this process and returns its stdout."""

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["swap_attention.py", *words])
        program.main()
        return capsys.readouterr().out

    return run


def test_the_figures(typed: Typed) -> None:
    found = json.loads(typed(*SMALL, "--rounds", "2", "--json"))
    assert found["swapped"] == ["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"]
    assert found["largest_difference"] < 1e-5
    assert len(found["losses"]) == 2 * 4
    assert found["losses"][-1] < found["losses"][0]
    for times in found["milliseconds"].values():
        assert list(times) == ["torch", "headwise"]
        assert min(times.values()) > 0


def test_the_table(typed: Typed) -> None:
    lines = typed(*SMALL, "--layers", "1", "--rounds", "1").splitlines()
    assert lines[0] == "replaced: encoder.layers.0.self_attn"
    assert lines[1].startswith("outputs differ by at most ")
    assert lines[3].split() == ["milliseconds", "torch", "headwise", "ratio"]
    assert [line.split()[0] for line in lines[4:6]] == ["inference", "training"]
    assert lines[-1].startswith("loss ")


def test_parameters_and_names_stay(program: Any) -> None:
    """In a model with self-attention and cross attention."""
    model = nn.Transformer(16, 2, 1, 1, 24, dropout=0.0, batch_first=True)
    parameters, names = set(model.parameters()), list(model.state_dict())
    assert program.swap(model) == [
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
    ]
    assert set(model.parameters()) == parameters
    assert list(model.state_dict()) == names
    kinds = {type(part) for part in model.modules() if isinstance(part, nn.MultiheadAttention)}
    assert kinds == {hw.nn.TorchMultiheadAttention}
    assert program.swap(model) == []
    assert model(torch.randn(2, 5, 16), torch.randn(2, 3, 16)).shape == (2, 3, 16)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rounds", "0"), "--rounds must be at least 1, got 0"),
        (("--heads", "5"), "--heads must divide --width, got 5 and 24"),
    ],
)
def test_refusals(
    typed: Typed, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    with pytest.raises(SystemExit) as end:
        typed(*SMALL, *words)
    assert end.value.code == 2
    assert says in capsys.readouterr().err

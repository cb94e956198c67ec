"""The example that patches a model written for torch."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from headwise.ops import tally

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_same_results_and_three_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", ["patched_sdpa.py", "--length", "23", "--times", "1"])
    with tally() as counted:
        import_module("patched_sdpa").main()
    assert counted["native"] == 4
    shown = capsys.readouterr().out
    apart = re.search(r"apart by at most (\S+)", shown)
    assert apart is not None
    assert float(apart[1]) < 1e-5
    assert shown.splitlines()[-3:] == [
        "float32, causal: headwise",
        "float64: torch, for the dtype is torch.float64",
        "keys of another width: torch, for the sizes of query, key and value do not fit each other",
    ]

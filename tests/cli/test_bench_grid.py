"""The measuring grid outside the package: its cases, and how its program ends."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import run
from benchmarks.cases import GROUPS
from headwise.cli.bench import Case, Limits, Report, report
from headwise.cli.failures import Unable

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _ended(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """Return the exit code that the program ended with by itself."""
    monkeypatch.setattr(sys, "argv", ["run", *words])
    with pytest.raises(SystemExit) as end:
        run.main()
    return end.value.code


def test_a_name_means_one_case() -> None:
    cases = {case for group in GROUPS.values() for case in group}
    assert set(Counter(case.name for case in cases).values()) == {1}


@pytest.mark.parametrize("group", ["training", "training-half"])
def test_training_is_measured_at_uneven_sizes(group: str) -> None:
    cases = GROUPS[group]
    assert len(cases) == 4 * 3 * 2
    assert all(case.backward for case in cases)
    assert {case.q_len for case in cases} == {1024, 2048, 1031, 3001}
    assert {case.head_dim for case in cases} == {64, 128, 80}


def test_names_are_listed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run", "--list", "overhead", "overhead-8"])
    run.main()
    assert capsys.readouterr().out.split() == ["overhead-8", "overhead-16", "overhead-32"]


def test_an_unknown_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ended(monkeypatch, "none-such") == 2
    assert "unknown: none-such; the groups are forward, half" in capsys.readouterr().err


def test_a_wrong_case_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def mistaken(case: Case, seconds: float, limits: Limits | None) -> Report:
        if case.name == "overhead-8":
            raise Unable("overhead-8: output of headwise is wrong")
        return report(case, seconds, limits)

    monkeypatch.setattr(run, "report", mistaken)
    words = ("overhead-8", "overhead-16", "--seconds", "0", "--threads", "1", "--json")
    assert _ended(monkeypatch, *words) == 1
    said = capsys.readouterr()
    assert [case["name"] for case in json.loads(said.out)["cases"]] == ["overhead-16"]
    assert said.err == "overhead-8: output of headwise is wrong\n"


def test_ctrl_c_has_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "report", interrupted)
    assert _ended(monkeypatch, "overhead-8") == 130
    assert capsys.readouterr() == ("", "stopped\n")


@pytest.mark.slow
def test_it_runs_as_the_readme_says() -> None:
    command = [sys.executable, "-m", "benchmarks.run", "overhead", "--threads", "1"]
    done = subprocess.run(
        [*command, "--seconds", "0.1"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 3 + 3

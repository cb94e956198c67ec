"""The example that lets mechanisms learn the same text: its text, its turns, its tables."""

import json
import math
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ("--steps", "3", "--length", "37", "--batch", "2", "--width", "16", "--heads", "2")
SMALLER = (*SMALL, "--layers", "1", "--block", "4", "--window", "6", "--rank", "5")
COLUMNS = "attention bits bits at equal time seconds of full peak MB"
CAUSAL = ["full", "window", "bigbird", "linear", "random-features"]

Typed = Callable[..., str]
Example = Callable[[str], Any]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Example:
    """Return a function that imports an example by name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return import_module


@pytest.fixture
def typed(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Return a function that runs the example in this process and returns its stdout."""

    def run(*words: object) -> str:
        program = example("compare_mechanisms")
        monkeypatch.setattr(sys, "argv", ["compare_mechanisms.py", *map(str, words)])
        program.main()
        return capsys.readouterr().out

    return run


def test_each_document_is_learned_from_or_held_out(example: Example) -> None:
    documents = [chr(ord("A") + n) * (n + 1) for n in range(17)]
    text = example("help_pages").Text(documents)
    between = bytes([0])
    found = [bytes(part.tolist()).split(between) for part in (text.training, text.held_out)]
    assert sorted(each.decode() for part in found for each in part) == documents
    assert [each.decode() for each in found[1]] == [documents[4], documents[12]]


def test_a_single_document_is_cut(example: Example) -> None:
    text = example("help_pages").Text(["abcdefgh" * 2])
    assert bytes(text.training.tolist()) == b"abcdefghabcdef"
    assert bytes(text.held_out.tolist()) == b"gh"


def test_pieces_are_whole_and_no_more_than_asked_for(example: Example) -> None:
    text = example("help_pages").Text(["x" * 56 + "0123456"])
    assert bytes(text.held_out.tolist()) == b"0123456"
    found = [[bytes(row.tolist()) for row in part] for part in text.pieces(2, 2, most=3)]
    assert found == [[b"01", b"23"], [b"45"]]
    assert [len(part) for part in text.pieces(2, 2, most=1)] == [1]
    batch = text.batch(5, 11, torch.Generator().manual_seed(0))
    assert batch.shape == (5, 11)
    assert batch.unique().tolist() == [ord("x")]


def test_bits_of_one_who_counts(example: Example) -> None:
    """Every other byte is certain where the one before is known, but for the ones added."""
    text = example("help_pages").Text(["ab" * 4000])
    assert text.bits(0) == pytest.approx(-math.log2(3501 / 7256), abs=2e-2)
    assert text.bits(1) == pytest.approx(-math.log2(3501 / 3756), abs=2e-2)


def test_hidden_bytes_are_told_and_no_others(example: Example) -> None:
    pages = example("help_pages")
    ids = torch.arange(1, 201).view(2, 100)
    read, wanted = pages.hidden(ids, torch.Generator().manual_seed(0))
    places = read == pages.HIDDEN
    assert 10 < places.sum() < 50
    assert torch.equal(torch.where(places, wanted, read), ids)
    assert torch.equal(wanted == -100, ~places)


def test_every_mechanism_learns_both_tasks(typed: Typed) -> None:
    found = json.loads(typed(*SMALLER, "--json"))
    assert list(found["tasks"]["masked"]) == [*CAUSAL, "low-rank"]
    assert list(found["tasks"]["causal"]) == CAUSAL
    assert not found["stopped"]
    for task in found["tasks"].values():
        fastest = min(figures["seconds"] for figures in task.values())
        for figures in task.values():
            curve = figures["curve"]
            assert curve["steps"] == [0, 1, 2, 3]
            assert curve["tokens"] == [0, 74, 148, 222]
            assert curve["bits"][-1] == figures["bits"] < curve["bits"][0]
            assert figures["of_full"] == figures["seconds"] / task["full"]["seconds"]
            assert curve["seconds"][-1] == figures["seconds"] == 3 * median(curve["times"])
            low, high = min(curve["bits"]), max(curve["bits"])
            assert low <= figures["bits_at_equal_time"] <= high
            if figures["seconds"] == fastest:
                assert figures["bits_at_equal_time"] == figures["bits"]
    kinds = {name: each["parameters"] for name, each in found["tasks"]["masked"].items()}
    assert kinds["low-rank"] > kinds["full"] == kinds["window"] == kinds["linear"]


def test_the_same_seed_gives_the_same_curve(typed: Typed) -> None:
    words = (*SMALLER, "--task", "masked", "--attention", "bigbird", "--json")
    one, other = (json.loads(typed(*words))["tasks"]["masked"]["bigbird"] for _ in range(2))
    assert one["curve"]["bits"] == other["curve"]["bits"]
    assert one["of_full"] is None


def test_tables_and_the_picture(typed: Typed, tmp_path: Path) -> None:
    picture = tmp_path / "curves.png"
    names = ("window", "low-rank")
    lines = typed(*SMALLER, "--attention", *names, "--plot", picture).splitlines()
    assert lines[0] == "masked: 3 steps, 222 bytes read in pieces of 37"
    assert lines[1].startswith("who only counts how often a byte comes takes 4.6")
    assert " ".join(lines[2].split()) == COLUMNS
    assert [line.split()[0] for line in lines[3:5]] == list(names)
    assert lines[5] == "causal: 3 steps, 222 bytes read in pieces of 37"
    assert [line.split()[0] for line in lines[8:]] == ["window"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_the_picture_draws(example: Example) -> None:
    curves = example("learning_curves")
    run = type("Run", (), {"curve": curves.Curve([0, 5], [0, 50], [8.0, 3.0], [0.4] * 5)})
    run.megabytes = 7.0  # type: ignore[attr-defined]
    figure = example("curves_picture").draw({"causal": {"full": run, "window": run}})
    by_bytes, by_time, memory = figure.axes
    assert [line.get_xydata().tolist() for line in by_bytes.lines] == [[[50, 3.0]]] * 2
    assert [line.get_xydata().tolist() for line in by_time.lines] == [[[2.0, 3.0]]] * 2
    assert [bar.get_width() for bar in memory.patches] == [7.0, 7.0]


def test_bits_between_two_looks(example: Example) -> None:
    curve = example("learning_curves").Curve(
        [0, 1, 3], [0, 1, 3], [8.0, 4.0, 2.0], [2.0, 2.0, 99.0]
    )
    assert [curve.at(seconds) for seconds in (0.0, 1.0, 2.0, 5.0, 6.0)] == [8, 6, 4, 2.5, 2]
    assert curve.at(7.0) is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--length", "999"), "--length 999 is too long: the text has 175 bytes to learn from"),
        (("--length", "1"), "--length must be at least 2, got 1"),
        (("--text", "none-such"), "--text none-such: No such file or directory"),
        (("--steps", "0"), "--steps must be at least 1, got 0"),
        (("--heads", "3"), "--width must be a multiple of twice --heads, got 16 and 3"),
        (("--window", "0"), "--window must be at least 1, got 0"),
        (("--plot", "x.pdf"), "--plot writes .png or .svg, got x.pdf"),
        (("--plot", "none-such/x.png"), "--plot: there is no folder none-such"),
        (("--attention", "magic"), "invalid choice: 'magic'"),
        (("--task", "causal", "--attention", "low-rank"), "low-rank is not causal"),
    ],
)
def test_refusals(
    typed: Typed,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    says: str,
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("0123456789" * 20)
    with pytest.raises(SystemExit) as end:
        typed(*SMALL, "--text", text, *words)
    assert end.value.code == 2
    assert says in capsys.readouterr().err


def test_ctrl_c_leaves_what_was_measured(
    example: Example,
    typed: Typed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = example("compare_mechanisms")
    step = program.Training.step

    def stopping(training: Any, sample: Any) -> None:
        if training.steps == 2:
            raise KeyboardInterrupt
        step(training, sample)

    monkeypatch.setattr(program.Training, "step", stopping)
    with pytest.raises(SystemExit) as end:
        typed(*SMALLER, "--attention", "full", "window", "--json")
    assert end.value.code == 130
    shown = capsys.readouterr()
    assert shown.err == "stopped before the end\n"
    found = json.loads(shown.out)
    assert found["stopped"]
    assert list(found["tasks"]) == ["masked"]
    assert found["tasks"]["masked"]["window"]["curve"]["steps"] == [0, 1, 2]

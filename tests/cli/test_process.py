"""The command line in a process of its own: signals, closed pipes, help, the entry point."""

import os
import pty
import signal
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from headwise import _interrupts
from headwise.cli import main
from headwise.cli.failures import EXIT_CODES
from headwise.info import info
from tests.cli.typed import started, typed


@pytest.mark.parametrize("command", [(), ("info",), ("generate",), ("embed",), ("bench",)])
def test_help_ends_with_the_exit_codes(command: tuple[str, ...]) -> None:
    shown = typed(*command, "--help")
    assert shown.exit_code == 0
    assert " ".join(shown.stdout.split()).endswith(EXIT_CODES)


def test_version() -> None:
    assert typed("--version").stdout == f"{info().headwise}\n"


def test_the_entry_point_is_declared() -> None:
    (script,) = distribution("headwise").entry_points.select(group="console_scripts")
    assert script.name == "headwise"
    assert script.load() is main


@pytest.mark.slow
def test_ctrl_c_ends_cleanly(writer: Path) -> None:
    words = ("generate", "--no-cache", "--temperature", "9", "--max-new-tokens", "90")
    process = started(*words, str(writer), "x")
    assert process.stdout is not None
    assert process.stdout.read(1) != ""
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complaint == "headwise generate: stopped\n"


@pytest.mark.slow
@pytest.mark.parametrize("words", [("info",), ("info", "--json")])
def test_a_reader_that_goes_away(words: tuple[str, ...]) -> None:
    with started(*words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141


@pytest.mark.slow
@pytest.mark.parametrize("words", [("info",), ("explain",), ("generate", "x"), ("bench",)])
@pytest.mark.parametrize("loading", ["torch", "typer"])
def test_ctrl_c_while_the_command_is_imported(words: tuple[str, ...], loading: str) -> None:
    """The process is stopped at the moment that it begins to import a package."""
    program = (
        "import os, runpy, signal, sys\n"
        "class Stop:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {loading!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Stop())\n"
        f"sys.argv = ['-m', *{list(words)!r}]\n"
        "sys.orig_argv = ['python', '-m', 'headwise.cli']\n"
        "runpy.run_module('headwise.cli', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "headwise: stopped\n")


@pytest.mark.parametrize(
    ("argv", "orig_argv", "is_ours"),
    [
        (["/some/bin/headwise", "info"], ["python", "/some/bin/headwise", "info"], True),
        (["-m", "info"], ["python", "-m", "headwise.cli", "info"], True),
        (["-m", "x"], ["python", "-m", "pytest", "x"], False),
        (["train.py", "headwise.cli"], ["python", "train.py", "headwise.cli"], False),
        (["-c"], ["python", "-c", "import headwise"], False),
        ([], [], False),
    ],
)
def test_only_the_command_line_is_ended_at_once(
    argv: list[str], orig_argv: list[str], is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    assert _interrupts._is_command_line() is is_ours


@pytest.mark.slow
def test_a_reader_that_goes_away_while_text_is_written(writer: Path) -> None:
    with started("generate", "--max-new-tokens", "90", str(writer), "x") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141


@pytest.mark.slow
def test_a_terminal_shows_the_prompt_and_a_pipe_does_not(writer: Path) -> None:
    words = ("generate", "--max-new-tokens", "3", str(writer), "The prompt")
    mine, theirs = pty.openpty()
    with started(*words, stdout=theirs) as process:
        os.close(theirs)
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 0
    assert os.read(mine, 99).startswith(b"The prompt")
    os.close(mine)
    output, complaint = started(*words).communicate(timeout=60)
    assert not output.startswith("The prompt")
    assert complaint == ""


@pytest.mark.slow
def test_a_wrong_path_has_no_traceback() -> None:
    process = started("generate", "./no/such", "hello")
    output, complaint = process.communicate(timeout=60)
    assert (process.returncode, output) == (2, "")
    assert complaint == "headwise generate: there is no folder ./no/such\n"


@pytest.mark.slow
def test_the_quick_bench_runs_whole() -> None:
    process = started("bench", "--quick")
    output, complaint = process.communicate(timeout=240)
    assert (process.returncode, complaint) == (0, "")
    assert len(output.splitlines()) == 3 + 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("HEADWISE_ISA=mmx {headwise} info", 1, "HEADWISE_ISA: instruction set 'mmx'"),
        ("{headwise} generate $'caf\\xe9'", 2, "is not valid UTF-8"),
        ("{headwise} info > /dev/full", 1, "No space left on device"),
        ("{headwise} info >&-", 0, ""),
        ("PYTHONIOENCODING=ascii {headwise} info", 0, ""),
    ],
)
def test_what_a_shell_can_do_to_a_command(line: str, code: int, says: str) -> None:
    command = line.format(headwise=f"{sys.executable} -m headwise.cli")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr

"""The command line in a process of its own: signals, closed pipes, help, the entry point."""

import os
import pty
import signal
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

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

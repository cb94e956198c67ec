"""Runs the command line: inside this process, or in one of its own."""

import os
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner

from headwise.cli import app

COMMAND = [sys.executable, "-m", "headwise.cli"]


def typed(*words: str) -> Any:
    """Return what the command line printed, and its exit code, run in this process."""
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def started(*words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start the command line in a process of its own, its output in pipes if not elsewhere."""
    return subprocess.Popen(
        [*COMMAND, *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def assert_refused(result: Any, code: int, *parts: str) -> None:
    """Check the exit code, and that stderr is one line that holds ``parts``."""
    assert result.exit_code == code, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("headwise ")
    for part in parts:
        assert part in lines[0]
    assert result.stdout == ""

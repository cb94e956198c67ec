"""Asking the importers for pip made setuptools refuse to load, and with it torch's compiler."""

import subprocess
import sys

PROGRAM = """
import contextlib
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from headwise.cli.failures import Unable
from headwise.cli.fetch import fetch

class Watch:
    def find_spec(self, name, path=None, target=None):
        assert name != "pip", "the importers were asked for pip"

sys.meta_path.insert(0, Watch())
with TemporaryDirectory() as work, contextlib.suppress(Unable):
    fetch("headwise-tests-no-such-package==0", [], Path(work))
"""


def test_the_importers_are_not_asked_for_pip() -> None:
    command = [sys.executable, "-c", PROGRAM]
    environment = {"PIP_NO_INDEX": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr

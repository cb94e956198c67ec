"""A plugin of pytest that runs foreign tests of torch's attention with ``headwise.patch`` on.

``--sdpa=torch`` changes nothing. ``--sdpa=patched`` switches the patch on. ``--sdpa=unpinned`` also
takes calls inside ``sdpa_kernel(FLASH_ATTENTION)``, which the patch leaves to torch: tests that
hold one kernel of torch's against the other then hold ours against torch's.
"""

from contextlib import ExitStack
from unittest.mock import patch

import pytest
import torch

import headwise as hw
from headwise.ops import tally
from headwise.patch import refusals

WAYS = ("torch", "patched", "unpinned")
COUNTED = "calls taken by headwise:"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of a way."""
    parser.addoption("--sdpa", choices=WAYS, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Switch the patch on before the tests' modules import the function."""
    way = config.getoption("--sdpa")
    stack = ExitStack()
    config.add_cleanup(stack.close)
    config.stash[_COUNTS] = stack.enter_context(tally())
    if way == "unpinned":
        flash_is_off = lambda: not torch._C._get_flash_sdp_enabled()  # noqa: E731
        stack.enter_context(patch.object(refusals, "pinned", flash_is_off))
    if way != "torch":
        stack.enter_context(hw.patch.sdpa())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many calls were taken; a run that took none has compared nothing."""
    counts = terminalreporter.config.stash[_COUNTS]
    terminalreporter.write_line(f"{COUNTED} {counts['native']}")


_COUNTS = pytest.StashKey[dict[str, int]]()

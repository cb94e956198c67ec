"""Ends the command line in one line where Ctrl-C comes while it is still being imported.

That takes a second or two, most of it torch. An exception there leaves a traceback, or aborts the
process inside torch's own start. So where this process is the command line, and nowhere else,
Ctrl-C ends it at once until a command says that it can be interrupted.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise ``KeyboardInterrupt`` while the block runs."""
    if signal.getsignal(signal.SIGINT) is not _stop:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _stop)


def _is_command_line() -> bool:
    """Say whether this process was started as ``headwise`` or ``python -m headwise.cli``."""
    started = (getattr(sys, "argv", None) or [""])[0]
    if started == "-m":
        return "headwise.cli" in sys.orig_argv
    return Path(started).stem == "headwise"


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, b"headwise: stopped\n")
    os._exit(130)


if (
    _is_command_line()
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, _stop)

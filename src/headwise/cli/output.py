"""Tables and progress for people; plain text where nobody is watching."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

_PLAIN_WIDTH = 10_000


def table(title: str, *, stderr: bool = False) -> Table:
    """Return an empty table: ruled on a terminal, bare columns where the output is piped."""
    watched = (sys.stderr if stderr else sys.stdout).isatty()
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD if watched else None)


def show(what: Table, *, stderr: bool = False) -> None:
    """Print a table, its numbers never cut; where it is piped, rows carry no trailing spaces.

    Rows that a terminal has no room for go on in its next line.
    """
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        terminal = Console(file=stream, highlight=False, markup=False)
        taken = Measurement.get(terminal, terminal.options.update_width(_PLAIN_WIDTH), what)
        if terminal.width < taken.minimum:
            terminal.width = taken.maximum
        terminal.print(what)
        return
    console = Console(file=io.StringIO(), width=_PLAIN_WIDTH, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(what)
    for line in captured.get().splitlines():
        print(line.rstrip(), file=stream)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show that something takes its time, while the block runs."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with _progress(*columns) as progress:
        progress.add_task(what, total=None)
        yield


def steps() -> Progress:
    """Return a bar that counts steps."""
    return _progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())


def transfer() -> Progress:
    """Return a bar that counts bytes."""
    return _progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn())


def _progress(*columns: ProgressColumn) -> Progress:
    # Bound to stderr as it is now, so that a library can be made quiet behind the bar.
    console = Console(file=sys.stderr)
    return Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty())

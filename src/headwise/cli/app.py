"""Gathers the commands and starts them."""

import os
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from headwise.cli.bench.command import bench
from headwise.cli.embed import embed
from headwise.cli.explain import explain
from headwise.cli.failures import EXIT_CODES, guarded
from headwise.cli.generate import generate
from headwise.cli.info import info
from headwise.info import info as gather

app = typer.Typer(
    name="headwise",
    help="Attention for PyTorch, on real models: see it run, and measure it.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (info, explain, generate, embed, bench):
    app.command(epilog=EXIT_CODES)(guarded(command))


def _version(wanted: bool) -> bool:
    if wanted:
        print(gather().headwise)
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_version)
    ] = False,
) -> None:
    """Read what stands before the command."""


def main() -> None:
    """Run the command line; the entry point of ``headwise``."""
    warnings.formatwarning = _one_line
    _prepare_output()
    try:
        app(prog_name="headwise")
    except KeyboardInterrupt:
        print("headwise: stopped", file=sys.stderr)
        sys.exit(130)


def _prepare_output() -> None:
    """Let output that is closed swallow what is written, and a narrow encoding spell it out."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    return f"{category.__name__}: {message}\n"

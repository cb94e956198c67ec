"""How a command ends when it cannot do what was asked: one line, an exit code, no traceback."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec

import typer

from headwise._interrupts import interruptible
from headwise.errors import BackendRefused, CacheError, DtypeError, PatternError, ShapeError

EXIT_CODES = (
    "Exit codes: 0 done · 1 could not be done here (something is missing, or refused) · "
    "2 wrong input · 130 stopped by Ctrl-C · 141 the reader of the output went away"
)

_Options = ParamSpec("_Options")
_REFUSED = (BackendRefused, CacheError, DtypeError, PatternError, ShapeError)


class WrongInput(Exception):
    """What the user typed cannot be right; the message says what would be."""


class Unable(Exception):
    """The input is fine, but something that it needs is missing; the message says what."""


def guarded(command: Callable[_Options, None]) -> Callable[_Options, None]:
    """Wrap a command so that its expected failures become one line and an exit code."""

    @wraps(command)
    def run(*args: _Options.args, **options: _Options.kwargs) -> None:
        try:
            with interruptible():
                command(*args, **options)
                sys.stdout.flush()
        except WrongInput as wrong:
            raise _end(command.__name__, str(wrong), 2) from None
        except (Unable, *_REFUSED) as refusal:
            raise _end(command.__name__, str(refusal), 1) from None
        except KeyboardInterrupt:
            raise _end(command.__name__, "stopped", 130) from None
        except BrokenPipeError:
            _forget_output()
            raise typer.Exit(141) from None
        except OSError as failure:
            _forget_output()
            raise _end(command.__name__, first_line(failure), 1) from None

    return run


@contextmanager
def running(model: str) -> Iterator[None]:
    """Turn what a model fails with while it runs into one line; refusals stay what they are."""
    try:
        yield
    except (WrongInput, Unable, OSError, *_REFUSED):
        raise
    except Exception as error:
        raise Unable(
            f"{model} failed while it ran: {type(error).__name__}: {first_line(error)}"
        ) from error


def check_text(*texts: str) -> None:
    """Refuse arguments that are no text: bytes that the shell passed on and nobody can decode."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise WrongInput(f"the text {text!a} is not valid UTF-8") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its kind where it has no text."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def one_line(refusal: BaseException, *callers: str) -> str:
    """Return what a refusal says first and how it says to go on, on one line.

    Args:
        refusal: An error in the words of the library.
        callers: Functions of the library behind the command, whose names are left out.
    """
    lines = str(refusal).splitlines() or [type(refusal).__name__]
    said = lines[0]
    for caller in callers:
        said = said.removeprefix(f"{caller}: ")
    hints = [line.removeprefix("  hint: ") for line in lines if line.startswith("  hint: ")]
    return "; ".join([said, *hints])


def _end(command: str, message: str, code: int) -> typer.Exit:
    print(f"headwise {command}: {message}", file=sys.stderr)
    return typer.Exit(code)


def _forget_output() -> None:
    """Send what is still buffered nowhere, so that Python does not fail again on its way out."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

"""Reads the HEADWISE_* environment variables that Python code looks at."""

import os
from pathlib import Path

from headwise.errors import BackendRefused

PROJECTIONS = ("packed", "unpacked", "torch")


def models_folder() -> Path:
    """Return where fetched models are kept: ``HEADWISE_MODELS``, or a folder in the home cache."""
    named = os.environ.get("HEADWISE_MODELS", "")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "headwise" / "models"


def strict_by_default() -> bool:
    """Return whether ``HEADWISE_STRICT`` asks for errors where a slow path would be taken."""
    named = os.environ.get("HEADWISE_STRICT", "")
    if named not in ("", "0", "1"):
        raise BackendRefused(
            f"HEADWISE_STRICT: must be 1 or 0, got {named!r}\n"
            "  hint: 1 makes every slow path an error; unset or 0 takes it"
        )
    return named == "1"


def projections_by_default() -> str:
    """Return what ``HEADWISE_PROJECTIONS`` lets the layers' linear maps run on in inference."""
    named = os.environ.get("HEADWISE_PROJECTIONS", "") or PROJECTIONS[0]
    if named not in PROJECTIONS:
        raise BackendRefused(
            f"HEADWISE_PROJECTIONS: must be one of {', '.join(PROJECTIONS)}, got {named!r}\n"
            "  hint: leave it unset for the fastest; torch switches the faster ways off"
        )
    return named

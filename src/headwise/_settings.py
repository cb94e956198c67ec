"""Reads the HEADWISE_* environment variables that Python code looks at."""

import os
from pathlib import Path


def models_folder() -> Path:
    """Return where fetched models are kept: ``HEADWISE_MODELS``, or a folder in the home cache."""
    named = os.environ.get("HEADWISE_MODELS", "")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "headwise" / "models"

"""Optional packages: brought in when a command needs them, asked for by name when absent."""

import importlib
import importlib.util
from types import ModuleType

from headwise.cli.failures import Unable


def require(*names: str) -> None:
    """See that packages can be imported.

    Raises:
        Unable: One of them is not installed.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise Unable(f"this needs {' and '.join(missing)}: pip install 'headwise[hf]'")


def require_transformers() -> ModuleType:
    """Import transformers without its messages and bars.

    Raises:
        Unable: It is not installed.
    """
    require("transformers")
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers

"""The compiled core: loads it, or keeps the reason why it cannot be loaded."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from headwise.errors import BackendRefused, NativeMissingWarning

kernels: Any = None
reason: str | None = None

try:
    kernels = import_module("headwise._native._kernels")
except ImportError as missing:
    reason = f"the compiled core is missing ({missing})"

_warned = False


def isa() -> str | None:
    """Name the instruction set in use; ``None`` without the compiled core."""
    if kernels is None:
        return None
    try:
        name: str = kernels.isa()
    except ValueError as unknown:
        hint = "set HEADWISE_ISA to one of them, or leave it out for the best"
        raise BackendRefused(f"{unknown}\n  hint: {hint}") from unknown
    return name


def available() -> list[str]:
    """Name the instruction sets that run here, the plainest first; empty without the core."""
    return [] if kernels is None else kernels.available()


@contextmanager
def use_isa(name: str) -> Iterator[None]:
    """Put another instruction set in use for the time of the block, in the whole process.

    Raises:
        ValueError: The set is not available here; the message names those that are.
    """
    before = kernels.isa()
    kernels.use_isa(name)
    try:
        yield
    finally:
        kernels.use_isa(before)


def warn_once() -> None:
    """Say once per process that the compiled core is missing."""
    global _warned  # noqa: PLW0603
    if kernels is None and not _warned:
        _warned = True
        warnings.warn(
            f"headwise: {reason}; slower backends are used. "
            "Reinstall with a C++ compiler at hand, and HEADWISE_REQUIRE_NATIVE=1 to see "
            "what fails.",
            NativeMissingWarning,
            stacklevel=4,
        )

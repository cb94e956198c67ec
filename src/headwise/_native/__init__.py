"""The compiled core: loads it, or keeps the reason why it cannot be loaded."""

import warnings
from typing import Any

from headwise.errors import NativeMissingWarning

kernels: Any = None
reason: str | None = None

try:
    from headwise._native import _kernels as kernels
except ImportError as missing:
    reason = f"the compiled core is missing ({missing})"

_warned = False


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

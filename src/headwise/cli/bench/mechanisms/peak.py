"""What a call takes in memory at its peak, its results included."""

import ctypes
from collections.abc import Callable
from pathlib import Path

_PROCESS = Path("/proc/self")


def peak_megabytes(call: Callable[[], object]) -> float | None:
    """Return how far the memory of this process rises while ``call`` runs, in MB.

    Counts all that the process holds, also what compiled code takes behind torch. Free memory is
    given back to the system before, so that it is not used again unseen.

    Returns:
        ``None`` where that cannot be seen: it takes Linux and the GNU C library.
    """
    trim = _trim()
    if trim is None:
        return None
    call()
    trim(0)
    try:
        (_PROCESS / "clear_refs").write_text("5")
        before = _bytes("VmRSS")
        result = call()
        after = _bytes("VmHWM")
    except OSError:
        return None
    del result
    return (after - before) / 1e6


def _trim() -> Callable[[int], int] | None:
    """Return the C library's function that gives free memory back."""
    if not (_PROCESS / "clear_refs").exists():
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def _bytes(what: str) -> int:
    for line in (_PROCESS / "status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"the system does not tell {what}")

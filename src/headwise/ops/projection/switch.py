"""What linear maps may run on in inference: for the whole process, or for a block of code."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from headwise._settings import PROJECTIONS, projections_by_default

_asked: ContextVar[str | None] = ContextVar("headwise_projections", default=None)


@contextmanager
def projections(use: str) -> Iterator[None]:
    """Say what the layers' linear maps run on while the block runs, in this thread or task alone.

    It concerns inference alone; where a gradient is wanted, torch computes. The variable
    ``HEADWISE_PROJECTIONS`` says it for the whole process.

    Args:
        use: ``"packed"``, the default: the fastest way, which for more than a few rows keeps a copy
            of the weight in the order that oneDNN reads. ``"unpacked"``: the fastest way without
            copies. ``"torch"``: ``torch.nn.functional.linear``, always.

    Raises:
        ValueError: Another word.

    Example:
        >>> import torch, headwise as hw
        >>> layer = hw.MultiHeadAttention(16, 4).eval()
        >>> with torch.inference_mode(), hw.nn.projections("torch"):
        ...     layer(torch.ones(1, 3, 16)).shape
        torch.Size([1, 3, 16])
    """
    if use not in PROJECTIONS:
        raise ValueError(
            f"projections: use must be one of {', '.join(PROJECTIONS)}, got {use!r}\n"
            "  hint: 'torch' switches the faster ways off"
        )
    token = _asked.set(use)
    try:
        yield
    finally:
        _asked.reset(token)


def in_use() -> str:
    """Return what linear maps may run on in this thread or task."""
    asked = _asked.get()
    return projections_by_default() if asked is None else asked

"""Combinations that have a name elsewhere."""

from headwise._checks import is_int
from headwise.errors import PatternError
from headwise.patterns.base import Pattern
from headwise.patterns.causal import Causal
from headwise.patterns.window import Window


def sliding_causal(window: int) -> Pattern:
    """Let a query see ``window`` keys up to and including itself, as Hugging Face counts them.

    Raises:
        PatternError: A window below 1, which would leave a query nothing to see.
    """
    if not is_int(window) or window < 1:
        raise PatternError(
            f"sliding_causal: window must be an int of at least 1, got {window!r}\n"
            "  hint: the window counts the query's own key; without a window use Causal()"
        )
    return Causal() & Window(window - 1, 0)

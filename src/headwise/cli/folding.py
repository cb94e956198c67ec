"""Breaks text into lines for the columns of a table, in scripts with and without spaces."""

import re
import sys
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console

# What must stay together: a word, or one wide character; a closing sign never begins a line.
CLOSING = "\u3001\u3002\uff0c\uff1a\uff1b\uff09"
_PIECES = re.compile(rf"\s+|(?:[!-~]+|\S)[{CLOSING}]*")
_BETWEEN = 3  # cells that a table keeps free for each column, and one more


def column_widths(columns: Sequence[Sequence[str]]) -> list[int | None]:
    """Return how wide each column may be on the terminal; ``None`` where lines may be endless.

    The first column, of names, gets what it needs, the others at least their longest word; they
    share the rest by what they hold.
    """
    if not sys.stdout.isatty():
        return [None] * len(columns)
    names, *others = columns
    first = max(map(cell_len, names))
    least = [max(cell_len(word) for text in texts for word in _words(text)) for texts in others]
    amounts = [sum(map(cell_len, texts)) for texts in others]
    room = Console(file=sys.stdout).width - _BETWEEN * len(columns) - 1 - first - sum(least)
    shares = [max(room, 0) * amount // sum(amounts) for amount in amounts]
    return [first, *(few + more for few, more in zip(least, shares, strict=True))]


def folded(text: str, width: int | None) -> str:
    """Break ``text`` into lines of at most ``width`` cells; a longer word has its own line."""
    if width is None:
        return text
    lines = [""]
    for piece in _PIECES.findall(text):
        if cell_len(lines[-1] + piece.rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
        if lines[-1] or not piece.isspace():
            lines[-1] += piece
    return "\n".join(line for line in lines if line)


def _words(text: str) -> list[str]:
    return [piece for piece in _PIECES.findall(text) if not piece.isspace()]

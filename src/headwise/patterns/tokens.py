"""The words and signs of a pattern written as text, each with its place."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from headwise.errors import PatternError

_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][\w.]*)|(?P<int>-?\d+(?:_\d+)*)|(?P<sign>[&|~()\[\],=]))"
)
_DIGITS = 18  # positions are 64-bit numbers
_SHOWN = 60  # characters of a long text that a message quotes


class Token(NamedTuple):
    """A word or sign; ``kind`` is ``name``, ``int``, ``sign`` or, behind the last, ``end``."""

    kind: str
    text: str
    place: int

    @property
    def described(self) -> str:
        """The token as a message names it."""
        return "the end of the text" if self.kind == "end" else repr(self.text)


def tokens(text: str) -> Iterator[Token]:
    """Cut a text into tokens; the last one is its end.

    Raises:
        PatternError: A character that no pattern has, or a number of too many digits.
    """
    place = 0
    end = len(text.rstrip())
    while place < end:
        found = _TOKEN.match(text, place)
        if found is None:
            place += len(text[place:]) - len(text[place:].lstrip())
            raise misplaced(
                text,
                place,
                f"{text[place]!r} is no part of a pattern",
                "names, whole numbers, & | ~ ( ) [ ] , and = are",
            )
        kind = str(found.lastgroup)
        token = Token(kind, found.group(kind), found.start(kind))
        if kind == "int" and len(token.text) > _DIGITS:
            raise misplaced(
                text,
                token.place,
                f"a number has {len(token.text)} digits",
                f"positions and counts have at most {_DIGITS}; none leaves a side without bound",
            )
        yield token
        place = found.end()
    yield Token("end", "", end)


def misplaced(text: str, place: int, problem: str, hint: str) -> PatternError:
    """Word a refusal that points at a place of the text."""
    start = max(0, min(place - _SHOWN // 2, len(text) - _SHOWN))
    # One character for one, so that the mark stands below what it marks.
    quoted = "".join(c if c.isprintable() else " " for c in text[start : start + _SHOWN])
    before = "…" if start else ""
    after = "…" if start + _SHOWN < len(text) else ""
    lines = [f"patterns.parse: at character {place + 1}, {problem}"]
    if quoted.strip():
        lines += [f"  {before}{quoted}{after}", f"  {' ' * (len(before) + place - start)}^"]
    return PatternError("\n".join([*lines, f"  hint: {hint}"]))

"""Patterns as people type them: ``"causal & window(511, 0) | global(4)"``.

A value is operands joined by ``&`` and ``|``, of which ``&`` binds closer. An operand is a value
in parentheses, ``~`` and an operand, a whole number, a list of values in brackets or parentheses,
or a name, perhaps with arguments; an argument is a value, perhaps with ``name=`` before it.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

from headwise.errors import PatternError
from headwise.patterns.base import Pattern
from headwise.patterns.global_tokens import GlobalTokens
from headwise.patterns.names import CALLED, KINDS, WORDS, arguments, fold, suggested
from headwise.patterns.per_head import PerHead
from headwise.patterns.tokens import Token, misplaced, tokens

# Whoever walks through a pattern goes some calls deeper for each part.
_JOINED = 64
_LEVELS = _JOINED + 8


def parse(text: str) -> Pattern:
    """Read a pattern from text, such as ``"causal & window(511, 0) | global(4)"``.

    ``&``, ``|`` and ``~`` bind as in Python: ``~`` first, then ``&``, then ``|``; parentheses
    group. A pattern is its name in lower snake case with the arguments of its class or function:
    ``full``, ``causal``, ``window(left, right)``, ``sliding_causal(256)``, ``strided(128)``,
    ``fixed(128, 8)``, ``global(0, 4)`` (the tokens at positions 0 and 4), ``longformer(512, [0])``,
    ``block_window(64, 1, 1)``, ``global_blocks(64, 1, 1)``, ``random_blocks(64, 3, 0)``,
    ``bigbird(64)``, ``prefix(10)``, ``lengths([5, 7])``, ``documents([0, 0, 1])``, ``key_mask``,
    ``dense``, ``tiles``, ``per_head(causal, window(4, 4))``. Arguments may be named, as in
    ``dilation=2``; ``none`` stands for ``None``. Names of classes are taken as well, in upper or
    lower case, so the ``repr`` of a pattern reads back. Nothing is evaluated as a program.

    Raises:
        PatternError: What is no pattern, with the place in the text, or arguments that the
            pattern refuses.

    Example:
        >>> parse("causal & window(1, 0) | global(0)")
        ((Causal() & Window(left=1, right=0, dilation=1)) | GlobalTokens(which=(0,)))
    """
    if not isinstance(text, str):
        raise PatternError(
            f"patterns.parse: a pattern is read from a str, got {type(text).__name__}\n"
            "  hint: a pattern that is one already needs no parsing"
        )
    return _Reader(text).whole()


class _Reader:
    """Reads from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._next = next(self._tokens)
        self._level = self._joins = 0

    def whole(self) -> Pattern:
        start = self._next
        found = self._value()
        if self._next.kind != "end":
            raise self._unexpected("& or | or the end")
        return self._sure(found, start)

    def _value(self) -> Any:  # noqa: ANN401
        start = self._next
        found = self._both()
        while self._took("|"):
            right = self._next
            found = self._sure(found, start) | self._sure(self._both(), right)
        return found

    def _both(self) -> Any:  # noqa: ANN401
        start = self._next
        found = self._operand()
        while self._took("&"):
            right = self._next
            found = self._sure(found, start) & self._sure(self._operand(), right)
        return found

    def _operand(self) -> Any:  # noqa: ANN401
        start = self._next
        self._level += 1
        if self._level > _LEVELS or self._joins > _JOINED:
            problem = f"more than {_JOINED} patterns are joined or nested"
            raise misplaced(self._text, start.place, problem, "build it in Python")
        found: Any
        if self._took("~"):
            right = self._next
            found = ~self._sure(self._operand(), right)
        elif self._took("("):
            values, listed = self._values(")")
            found = tuple(values) if listed else values[0]
        elif self._took("["):
            found = self._values("]")[0]
        elif start.kind == "int":
            self._advance()
            found = int(start.text)
        elif start.kind == "name":
            self._advance()
            found = self._named(start)
        else:
            raise self._unexpected("a pattern" if self._level == 1 else "a pattern or a number")
        self._level -= 1
        return found

    def _values(self, end: str) -> tuple[list[Any], bool]:
        """Read to the end of a list; say also whether it must be one, by its commas."""
        values: list[Any] = []
        listed = True
        while not self._took(end):
            values.append(self._value())
            listed = self._separated(end) or len(values) > 1
        return values, listed

    def _separated(self, end: str) -> bool:
        """Pass a comma and say so, or stand before the end."""
        if self._took(","):
            return True
        if self._next.text != end:
            raise self._unexpected(f"a comma or {end!r}")
        return False

    def _named(self, name: Token) -> Any:  # noqa: ANN401
        folded = fold(name.text)
        if folded in WORDS:
            return WORDS[folded]
        if folded not in CALLED:
            problem = f"{name.text!r} is no pattern"
            raise misplaced(self._text, name.place, problem, suggested(name.text))
        values: list[Any] = []
        named: dict[str, Any] = {}
        if self._took("("):
            while not self._took(")"):
                self._argument(values, named)
                self._separated(")")
        return self._built(name, CALLED[folded], values, named)

    def _argument(self, values: list[Any], named: dict[str, Any]) -> None:
        start = self._next
        if start.kind == "name" and start.text.lower() not in WORDS:
            ahead = self._text[start.place + len(start.text) :].lstrip()
            if ahead.startswith("="):
                self._advance()
                self._advance()
                if start.text in named:
                    problem = f"{start.text!r} is given twice"
                    raise misplaced(self._text, start.place, problem, "give it once")
                named[start.text] = self._value()
                return
        if named:
            raise self._unexpected("a named argument")
        values.append(self._value())

    def _built(
        self, name: Token, kind: Callable[..., Any], values: list[Any], named: dict[str, Any]
    ) -> Any:  # noqa: ANN401
        several = kind is GlobalTokens and len(values) > 1
        if several or (kind is PerHead and all(isinstance(part, Pattern) for part in values)):
            values = [values] if values else []
        try:
            signature(kind).bind(*values, **named)
        except TypeError as wrong:
            hint = f"it takes {name.text}({arguments(kind)})"
            raise misplaced(self._text, name.place, f"{name.text}: {wrong}", hint) from None
        try:
            return kind(*values, **named)
        except PatternError as wrong:
            problem, _, hint = str(wrong).partition("\n  hint: ")
            raise misplaced(self._text, name.place, problem, hint) from wrong
        except (TypeError, ValueError, RuntimeError, OverflowError) as wrong:
            problem = f"{name.text} cannot be built from this: {str(wrong).splitlines()[0]}"
            hint = f"it takes {name.text}({arguments(kind)})"
            raise misplaced(self._text, name.place, problem, hint) from wrong

    def _sure(self, found: object, start: Token) -> Pattern:
        """Return what was read as the pattern that it must be."""
        if isinstance(found, Pattern):
            return found
        problem = f"found {start.described} where a pattern must stand"
        raise misplaced(self._text, start.place, problem, f"there are {', '.join(KINDS)}")

    def _unexpected(self, wanted: str) -> PatternError:
        problem = f"found {self._next.described}"
        return misplaced(self._text, self._next.place, problem, f"here may stand {wanted}")

    def _took(self, sign: str) -> bool:
        if self._next.kind != "sign" or self._next.text != sign:
            return False
        self._joins += sign in ("&", "|")
        self._advance()
        return True

    def _advance(self) -> None:
        self._next = next(self._tokens)

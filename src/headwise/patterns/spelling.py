"""Patterns in a form that compiled graphs can carry: text, whole numbers and tensors.

A compiler follows this code while the numbers in the tensors are still unknown, so nothing here
may compare, hash or look at them.
"""

import ast
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.errors import PatternError
from headwise.patterns.base import Pattern
from headwise.patterns.blocks import BlockWindow, GlobalBlocks
from headwise.patterns.causal import Causal, Full
from headwise.patterns.chosen_tiles import Tiles
from headwise.patterns.combine import Both, Either, Not
from headwise.patterns.content import Content
from headwise.patterns.dense import Dense, KeyMask
from headwise.patterns.documents import Documents
from headwise.patterns.global_tokens import GlobalTokens
from headwise.patterns.per_head import PerHead
from headwise.patterns.random_blocks import RandomBlocks
from headwise.patterns.segments import Lengths, Prefix
from headwise.patterns.strided import Fixed, Strided
from headwise.patterns.window import Window

_LEAVES = (
    *(Full, Causal, Window, Strided, Fixed, GlobalTokens),
    *(BlockWindow, GlobalBlocks, RandomBlocks, Tiles),
    *(Prefix, Lengths, KeyMask, Dense, Documents),
)
_JOINING = (Both, Either, Not, PerHead)
_PARTS: dict[type[Pattern], tuple[str, ...]] = {
    kind: tuple(part.name for part in fields(kind) if part.init) for kind in (*_LEAVES, *_JOINING)
}
_NAMED: dict[str, type[Pattern]] = {kind.__name__: kind for kind in _PARTS}


class Spelling(NamedTuple):
    """A pattern written down.

    ``text`` is an expression such as ``Both(Causal(), KeyMask(t0))``, in which ``n0`` stands for
    the first of ``numbers`` and ``t0`` for the first of ``tensors``.
    """

    text: str
    numbers: list[int]
    tensors: list[Tensor]


def spell(pattern: Pattern) -> Spelling:
    """Write a pattern down.

    Raises:
        PatternError: A kind of pattern that headwise does not know.
    """
    numbers: list[int] = []
    tensors: list[Tensor] = []
    return Spelling(_written(pattern, numbers, tensors), numbers, tensors)


def unknown_kind(pattern: Pattern) -> str | None:
    """Name the first kind of pattern that ``spell`` would refuse, if there is one."""
    kind = type(pattern)
    if kind not in _PARTS:
        return kind.__name__
    for name in _PARTS[kind]:
        held = getattr(pattern, name)
        for part in held if isinstance(held, tuple) else (held,):
            if isinstance(part, Pattern) and (found := unknown_kind(part)) is not None:
                return found
    return None


def read(text: str, numbers: Sequence[int], tensors: Sequence[Tensor]) -> Pattern:
    """Build the pattern that ``spell`` wrote down; ``read(*spell(p)) == p``.

    Raises:
        PatternError: Anything that ``spell`` does not write, or numbers that make no pattern.
    """
    try:
        found = _built(parsed(text), numbers, tensors)
    except PatternError:
        raise
    except (SyntaxError, ValueError, LookupError, TypeError, RecursionError, MemoryError) as wrong:
        raise _unreadable(text) from wrong
    if not isinstance(found, Pattern):
        raise _unreadable(text)
    return found


def _written(part: object, numbers: list[int], tensors: list[Tensor]) -> str:
    if part is None:
        return "None"
    if isinstance(part, Pattern):
        kind = type(part)
        if kind not in _PARTS:
            raise PatternError(
                f"{kind.__name__}: a pattern that headwise does not know cannot be written down\n"
                "  hint: spell it out with Dense(pattern.dense(q_len, kv_len))"
            )
        inner = []
        for name in _PARTS[kind]:
            held = getattr(part, name)
            # Sides are whole numbers that a graph is made for, like every other size.
            if kind is Tiles and isinstance(held, tuple):
                inner.append(f"({', '.join(_written(each, numbers, tensors) for each in held)})")
            else:
                inner.append(_written(held, numbers, tensors))
        return f"{kind.__name__}({', '.join(inner)})"
    if isinstance(part, tuple) and part and isinstance(part[0], Pattern):
        return ", ".join(_written(each, numbers, tensors) for each in part)
    if isinstance(part, Content):
        tensors.append(part.tensor)
    elif isinstance(part, tuple):
        tensors.append(torch.tensor(part, dtype=torch.int64, device="cpu"))
    else:
        assert isinstance(part, int | torch.SymInt)
        numbers.append(part)  # type: ignore[arg-type]
        return f"n{len(numbers) - 1}"
    return f"t{len(tensors) - 1}"


def kind_named(name: str) -> type[Pattern]:
    """Return the kind of pattern that a spelling calls ``name``."""
    return _NAMED[name]


@lru_cache(maxsize=256)
def parsed(text: str) -> ast.expr:
    """Return the expression that ``text`` is, not yet checked."""
    return ast.parse(text, mode="eval").body


def _built(node: ast.expr, numbers: Sequence[int], tensors: Sequence[Tensor]) -> Any:  # noqa: ANN401
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Name(id=name) if name[0] in "nt" and name[1:].isdecimal():
            return (numbers if name[0] == "n" else tensors)[int(name[1:])]
        case ast.Tuple(elts=parts):
            return tuple(_built(part, numbers, tensors) for part in parts)
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]):
            kind, found = _NAMED[name], [_built(part, numbers, tensors) for part in parts]
            if kind not in _JOINING:
                return kind(*found)
            if all(isinstance(part, Pattern) for part in found):
                return PerHead(found) if kind is PerHead else kind(*found)
    raise TypeError


def _unreadable(text: str) -> PatternError:
    return PatternError(
        f"no pattern can be read from {text[:200]!r}\n"
        "  hint: only what headwise itself wrote down, with its numbers and tensors, can be read"
    )

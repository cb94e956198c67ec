"""Whole numbers as users give them: one for all samples, or one per sample."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from headwise.errors import PatternError

Counts: TypeAlias = int | Tensor | Sequence[int]
Settled: TypeAlias = int | tuple[int, ...]


class Wanted(NamedTuple):
    """How a refusal names what would do."""

    what: str
    hint: str


COUNTS = Wanted(
    "an int or 1-D integers (batch,)",
    "give one number of tokens for all samples, or one per sample",
)


def whole_numbers(name: str, numbers: object, wanted: Wanted = COUNTS) -> Settled:
    """Return one int, or a tuple of several; refuse flags, fractions and text."""
    if isinstance(numbers, Tensor):
        refuse_kind(name, numbers, wanted)
        numbers = numbers.tolist()
    try:
        if isinstance(numbers, Iterable) and not isinstance(numbers, str | bytes):
            return tuple(_whole(number) for number in numbers)
        return _whole(numbers)
    except TypeError:
        raise _refusal(name, repr(numbers), wanted) from None


def refuse_kind(name: str, numbers: Tensor, wanted: Wanted = COUNTS) -> None:
    """Refuse tensors that cannot hold whole numbers, one or several."""
    wrong = numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool
    if wrong or numbers.ndim > 1:
        raise _refusal(name, f"shape {tuple(numbers.shape)} {numbers.dtype}", wanted)


def _whole(number: object) -> int:
    if isinstance(number, bool):
        raise TypeError
    # A compiler would make a constant of an int that is asked for its index.
    return number if isinstance(number, int) else index(number)  # type: ignore[arg-type]


def _refusal(name: str, got: str, wanted: Wanted) -> PatternError:
    return PatternError(f"{name} must be {wanted.what}, got {got}\n  hint: {wanted.hint}")

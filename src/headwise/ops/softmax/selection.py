"""Which rows or heads of a call are asked for."""

from collections.abc import Sequence
from operator import index
from typing import TypeAlias

import torch
from torch import Tensor

Selection: TypeAlias = Sequence[int] | Tensor | slice | int | None


def pick(name: str, selection: Selection, size: int) -> list[int] | None:
    """Return the chosen indices below ``size`` as a list; ``None`` for all.

    Raises:
        IndexError: An index that does not exist, or a boolean mask of another size.
        TypeError: Something that is no index.
    """
    if selection is None:
        return None
    if isinstance(selection, slice):
        return list(range(size)[selection])
    if isinstance(selection, Tensor):
        if selection.dtype == torch.bool:
            if selection.shape != (size,):
                raise IndexError(
                    f"attention_weights: a boolean {name}= must have the shape ({size},), "
                    f"got {tuple(selection.shape)}"
                )
            return [number for number, wanted in enumerate(selection.tolist()) if wanted]
        selection = selection.tolist()
    try:
        chosen = [
            _position(n) for n in (selection if isinstance(selection, Sequence) else [selection])
        ]
    except TypeError:
        raise TypeError(
            f"attention_weights: {name}= takes integers, a slice or a boolean tensor, "
            f"got {selection!r}"
        ) from None
    wrong = [number for number in chosen if not -size <= number < size]
    if wrong:
        raise IndexError(f"attention_weights: {name}={wrong[0]} is out of range for size {size}")
    return [number % size for number in chosen]


def _position(number: object) -> int:
    if isinstance(number, bool):
        raise TypeError
    return index(number)  # type: ignore[arg-type]

"""Which rows or heads of a call are asked for."""

from collections.abc import Sequence
from operator import index
from typing import TypeAlias

import torch
from torch import Tensor

from headwise.ops.softmax.call import Call, Distances

Selection: TypeAlias = Sequence[int] | Tensor | slice | int | None


def pick(caller: str, name: str, selection: Selection, size: int) -> list[int] | None:
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
                    f"{caller}: a boolean {name}= must have the shape ({size},), "
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
            f"{caller}: {name}= takes integers, a slice or a boolean tensor, got {selection!r}"
        ) from None
    wrong = [number for number in chosen if not -size <= number < size]
    if wrong:
        raise IndexError(f"{caller}: {name}={wrong[0]} is out of range for size {size}")
    return [number % size for number in chosen]


def cut(
    call: Call, rows: Sequence[int] | None, heads: Sequence[int] | None
) -> tuple[Call, Tensor | None, Tensor]:
    """Cut a call to chosen queries and heads, with one key head for each query head.

    Returns:
        The call, its pattern spelled out for the chosen queries (``None`` without one), and their
        places in the whole call.
    """
    # A length that a compiler leaves open must not become a list.
    which = (
        torch.arange(call.query.shape[2], device="cpu")
        if rows is None
        else torch.tensor(rows, dtype=torch.int64, device="cpu")
    )
    if rows is None and heads is None and call.group == 1:
        return call, call.allowed(), which
    chosen = list(range(call.query.shape[1]) if heads is None else heads)
    part = call._replace(
        query=_taken(_taken(call.query, 1, heads), 2, rows),
        key=_taken(call.key, 1, [head // call.group for head in chosen]),
        bias=_along(_along(call.bias, 1, heads), 2, rows),
        slopes=None if call.slopes is None else _taken(call.slopes, 0, heads),
        distances=_of_heads(call.distances, heads),
        sinks=None if call.sinks is None else _taken(call.sinks, 0, heads),
    )
    if call.pattern is None:
        return part, None, which
    return part, call.pattern.spelled(call.places, which, chosen).to(call.query.device), which


def _position(number: object) -> int:
    if isinstance(number, bool):
        raise TypeError
    return index(number)  # type: ignore[arg-type]


def _of_heads(distances: Distances | None, heads: Sequence[int] | None) -> Distances | None:
    if distances is None:
        return None
    return distances._replace(table=_taken(distances.table, 0, heads))


def _along(numbers: Tensor | None, axis: int, chosen: Sequence[int] | None) -> Tensor | None:
    """Take from a bias, which may be the same all along an axis."""
    if numbers is None or numbers.shape[axis] == 1:
        return numbers
    return _taken(numbers, axis, chosen)


def _taken(numbers: Tensor, axis: int, chosen: Sequence[int] | None) -> Tensor:
    if chosen is None or list(chosen) == list(range(numbers.shape[axis])):
        return numbers
    which = torch.tensor(chosen, device=numbers.device, dtype=torch.int64)
    return numbers.index_select(axis, which)

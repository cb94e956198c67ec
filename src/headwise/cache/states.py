"""What mechanisms with a state keep in a cache: nests of tensors, the batch in front."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from headwise._checks import is_int
from headwise.errors import CacheError

# Tensors, and tuples, lists and dictionaries of nests.
Nest: TypeAlias = Any


class LayerState(NamedTuple):
    """The state of one layer, and how many tokens it stands for; ``None`` = nobody said."""

    nest: Nest
    length: int | None


def mapped(nest: Nest, rule: Callable[[Tensor], Tensor]) -> Nest:
    """Return a nest of the same form with every tensor replaced."""
    if isinstance(nest, Tensor):
        return rule(nest)
    if isinstance(nest, dict):
        return {name: mapped(part, rule) for name, part in nest.items()}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(mapped(part, rule) for part in nest))
    if isinstance(nest, tuple | list):
        return type(nest)(mapped(part, rule) for part in nest)
    return nest


def tensors_of(nest: Nest) -> list[Tensor]:
    """Return all tensors of a nest, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(nest, note)
    return found


def check_nest(nest: Nest) -> int:
    """Return the number of rows of a state, or refuse it."""
    _check_kinds(nest)
    tensors = tensors_of(nest)
    sizes = {tensor.shape[0] if tensor.ndim else None for tensor in tensors}
    if len(sizes) != 1 or None in sizes:
        shapes = [tuple(tensor.shape) for tensor in tensors]
        raise CacheError(
            "KVCache.set_state: the tensors of a state must have the batch in front, all the "
            f"same, got {shapes}\n"
            "  hint: give each tensor a leading dimension of one entry per sample"
        )
    return int(sizes.pop() or 0)


def _check_kinds(nest: Nest) -> None:
    if isinstance(nest, Tensor):
        return
    if isinstance(nest, dict) and all(isinstance(name, str) for name in nest):
        parts = list(nest.values())
    elif isinstance(nest, tuple | list):
        parts = list(nest)
    elif nest is None:
        return
    else:
        raise CacheError(
            "KVCache.set_state: a state must be made of tensors, None, tuples, lists and "
            f"dictionaries with names, got {type(nest).__name__}\n"
            "  hint: turn numbers into tensors (batch,)"
        )
    for part in parts:
        _check_kinds(part)


class States:
    """The states of all layers of a cache."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerState] = {}

    def put(self, layer: int, nest: Nest, length: int | None, batch: int | None) -> None:
        """Keep a state in place of the one before; ``batch`` is that of keys and values."""
        if nest is None:
            self.layers.pop(layer, None)
            return
        if length is not None and (not is_int(length) or length < 0):
            raise CacheError(
                f"KVCache.set_state: length must be an int of at least 0, got {length!r}\n"
                "  hint: say how many tokens the state stands for, or leave it out"
            )
        rows = check_nest(nest)
        if batch not in (None, rows):
            raise CacheError(
                f"KVCache.set_state: layer {layer} holds {batch} samples, and the state is of "
                f"{rows}\n  hint: one cache serves one batch of one model"
            )
        before = self.layers.get(layer)
        if before is not None and check_nest(before.nest) != rows:
            raise CacheError(
                f"KVCache.set_state: layer {layer} has a state of {check_nest(before.nest)} "
                f"samples, and the new one is of {rows}\n"
                "  hint: one cache serves one batch of one model; reset() starts anew"
            )
        self.layers[layer] = LayerState(nest, length)

    def rows(self) -> set[int]:
        """Return the batch sizes that occur."""
        return {check_nest(state.nest) for state in self.layers.values()}

    def check_crop(self, length: int, layers: set[int]) -> None:
        """Refuse to take tokens back that a state stands for."""
        for number, state in self.layers.items():
            if number in layers and (state.length is None or length < state.length):
                raise CacheError(
                    f"KVCache.crop: layer {number} keeps a state, which cannot go back to "
                    f"{length} tokens\n  hint: fork() before the tokens that may be taken back"
                )

    def reorder(self, index: Tensor) -> None:
        """Let row ``i`` of every state become what row ``index[i]`` was."""
        self._replace(
            lambda nest: mapped(nest, lambda rows: rows.index_select(0, index.to(rows.device)))
        )

    def fork(self) -> "States":
        """Return the same states in memory of their own."""
        twin = States()
        twin.layers = dict(self.layers)
        twin._replace(lambda nest: mapped(nest, torch.clone))
        return twin

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        nests = (tensors_of(state.nest) for state in self.layers.values())
        return sum(tensor.nbytes for tensors in nests for tensor in tensors)

    def _replace(self, rule: Callable[[Nest], Nest]) -> None:
        self.layers = {
            number: state._replace(nest=rule(state.nest)) for number, state in self.layers.items()
        }

"""Words the refusals that several callers share; never changes a value."""

from numbers import Real

import torch
from torch import Tensor

from headwise.errors import DtypeError, ShapeError


def is_int(number: object) -> bool:
    """Say whether something is an int; flags are not."""
    return isinstance(number, int) and not isinstance(number, bool)


def is_one_number(given: object) -> bool:
    """Say whether something is a number, or a tensor of one; flags are not."""
    if type(given) is float:
        return True
    if isinstance(given, Tensor):
        return given.numel() == 1 and given.dtype != torch.bool
    return isinstance(given, Real | torch.SymFloat) and not isinstance(given, bool)


def describe(**tensors: Tensor) -> list[str]:
    """Return one row per tensor: name, shape, dtype, device."""
    width = max(len(name) for name in tensors)
    return [
        f"  {name:<{width}}  {tuple(t.shape)} {t.dtype} {t.device}" for name, t in tensors.items()
    ]


def refuse_shapes(caller: str, problem: str, hint: str, **tensors: Tensor) -> ShapeError:
    """Word a shape refusal so that it can be fixed without opening the source."""
    return ShapeError("\n".join([f"{caller}: {problem}", *describe(**tensors), f"  hint: {hint}"]))


def refuse_dtypes(caller: str, problem: str, hint: str, **tensors: Tensor) -> DtypeError:
    """Word a refusal of element types or devices."""
    return DtypeError("\n".join([f"{caller}: {problem}", *describe(**tensors), f"  hint: {hint}"]))

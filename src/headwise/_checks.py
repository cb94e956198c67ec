"""Words the refusals that several callers share; never changes a value."""

from torch import Tensor

from headwise.errors import DtypeError, ShapeError


def is_int(number: object) -> bool:
    """Say whether something is an int; flags are not."""
    return isinstance(number, int) and not isinstance(number, bool)


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

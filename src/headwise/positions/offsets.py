"""Where the tokens of a call stand: one position for all samples, or one per sample."""

from math import prod

import torch
from torch import Tensor

from headwise._checks import is_int, refuse_shapes
from headwise.errors import DtypeError, ShapeError

# Every whole number up to here is a float64 of its own.
FARTHEST = 1 << 53


def settle(caller: str, name: str, given: int | Tensor, x: Tensor, inner: int) -> int | Tensor:
    """Return an int, or one integer per sample; refuse everything else.

    The samples are all dimensions of ``x`` but the last ``inner`` ones.
    """
    if type(given) is int and -FARTHEST <= given <= FARTHEST:
        return given
    if isinstance(given, torch.SymInt):
        return given
    if not isinstance(given, Tensor):
        if not is_int(given):
            raise DtypeError(
                f"{caller}: {name} must be an int or a tensor of integers, "
                f"got {type(given).__name__}\n"
                "  hint: one int speaks of all samples, a tensor (batch,) of each of them"
            )
        if not -FARTHEST <= given <= FARTHEST:
            raise ShapeError(
                f"{caller}: {name} must lie within ±2**53, got {given}\n"
                "  hint: positions count tokens from the first one of the sequence"
            )
        return given
    if given.dtype == torch.bool or given.is_floating_point() or given.is_complex():
        raise DtypeError(
            f"{caller}: {name} must hold integers, got {given.dtype}\n"
            f"  hint: convert it with {name}.long()"
        )
    samples = prod(x.shape[:-inner])
    if given.shape != (samples,):
        raise refuse_shapes(
            caller,
            f"{name} must hold one integer per sample, ({samples},)",
            "the samples are the leading dimensions of x; an int speaks of all of them",
            x=x,
            **{name: given},
        )
    return given


def positions(offset: int | Tensor, length: int, device: torch.device) -> Tensor:
    """Return the position of every token, (length,) or (samples, length), as int64."""
    steps = torch.arange(length, dtype=torch.int64, device=device)
    if isinstance(offset, Tensor):
        return offset.to(device=device, dtype=torch.int64)[:, None] + steps
    return steps + offset

"""Why modules, and calls of modules, are left to the code that they had."""

import torch
from torch import nn

from headwise import _native
from headwise.ops.watchers import is_transformed

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def never(module: nn.Module) -> str | None:
    """Leave no module."""
    return None


def without_core(module: nn.Module) -> str | None:
    """Leave every module where there is no compiled core."""
    if _native.kernels is not None:
        return None
    return "headwise has no compiled core here, without which this would not be faster"


def other_weight(module: nn.Module) -> str | None:
    """Leave a layer whose weight is no plain parameter: quantised, sharded, or made anew."""
    kind = type(module.weight)
    return None if kind is nn.Parameter else f"its weight is a {kind.__name__}"


def other_numbers(device: torch.device, dtype: torch.dtype) -> str | None:
    """Say why the compiled core cannot compute a call, or must not; ``None`` where it can."""
    if device.type != "cpu" or dtype not in _DTYPES:
        return f"the compiled core does not compute {dtype} on {device.type}"
    if is_transformed() or torch._C._get_tracing_state() is not None:
        return "a transform or torch.jit follows torch's operations"
    return None

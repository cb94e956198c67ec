"""The dtype in which sums are taken, whatever autocast asks for."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Keep autocast out of a block of work on tensors like this one.

    Where it is off nothing is entered: a graph would hold a region that cannot be saved.
    """
    if tensor.is_meta or not torch._C._is_any_autocast_enabled():
        return nullcontext()
    return torch.autocast(tensor.device.type, enabled=False)

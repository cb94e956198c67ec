"""Whether torch chooses dtypes by itself."""

import torch
from torch import Tensor


def autocasts(x: Tensor) -> bool:
    """Say whether autocast is on where a tensor lives; devices without one have it never on."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)

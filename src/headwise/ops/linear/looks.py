"""Whether the numbers in tensors can be looked at before they are worked with."""

import torch
from torch import Tensor

from headwise.ops.watchers import is_transformed, is_watched


def can_be_looked_at(*tensors: Tensor | None) -> bool:
    """Say whether numbers may decide what is done: not in a graph, a transform, or on meta."""
    if is_transformed() or torch._C._get_tracing_state() is not None or is_watched(*tensors):
        return False
    return not any(tensor is not None and tensor.is_meta for tensor in tensors)

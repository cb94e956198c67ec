"""Who follows torch's operations at the moment: compilers, modes, transforms."""

import torch
from torch import Tensor

from headwise.patterns.content import PLAIN


def is_watched(*tensors: Tensor | None) -> bool:
    """Say whether kernels must be run as operators of torch, for a compiler or a mode to see."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return True
    for tensor in tensors:  # noqa: SIM110 (a generator costs more than the checks)
        if tensor is not None and type(tensor) not in PLAIN:
            return True
    return False


def is_transformed() -> bool:
    """Say whether a transform of torch.func is active; compilers can follow this question."""
    return torch._C._are_functorch_transforms_active()


def is_functionalized() -> bool:
    """Say whether the innermost transform is ``torch.func.functionalize``."""
    kinds = torch._C._functorch
    innermost = kinds.peek_interpreter_stack()
    return innermost is not None and innermost.key() == kinds.TransformType.Functionalize

"""Joins the samples of several equal calls to one call, for patterns that are written down."""

import ast
from collections.abc import Sequence

from torch import Tensor

from headwise.patterns.spelling import kind_named, parsed


def joined_pattern(
    text: str, tensors: Sequence[Tensor], dims: Sequence[int | None], copies: int, batch: int
) -> list[Tensor]:
    """Return the tensors of a pattern over ``copies`` calls of ``batch`` samples each.

    Args:
        text: The pattern as ``spell`` writes it.
        tensors: Its tensors.
        dims: For each tensor the axis along which the calls differ; ``None`` = they are alike.
        copies: Number of calls.
        batch: Samples of each call.
    """
    alike = {
        int(part.id[1:]): count
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        for part, count in zip(node.args, kind_named(node.func.id)._alike, strict=False)
        if isinstance(part, ast.Name) and part.id[0] == "t"
    }
    return [
        _joined(tensor, dim, alike[slot], copies, batch)
        for slot, (tensor, dim) in enumerate(zip(tensors, dims, strict=True))
    ]


def _joined(tensor: Tensor, dim: int | None, alike: int, copies: int, batch: int) -> Tensor:
    if dim is None and (tensor.ndim == alike or tensor.shape[0] == 1):
        return tensor
    tensor = tensor.expand(copies, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    if tensor.ndim == alike + 1:
        tensor = tensor.unsqueeze(1)
        if alike == 2:  # a mask for samples has an axis for heads, too
            tensor = tensor.unsqueeze(1)
    return tensor.expand(-1, batch, *tensor.shape[2:]).flatten(0, 1)

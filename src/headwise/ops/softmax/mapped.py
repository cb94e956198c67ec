"""Native attention over one more axis, for vmap: the mapped axis joins the batch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.ops.softmax.launch import Added
from headwise.patterns.base import Pattern
from headwise.patterns.joining import joined_pattern
from headwise.patterns.spelling import spell

Apply = Callable[..., tuple[Tensor, ...]]
Dims = Sequence[Any]


def attend(apply: Apply, copies: int, dims: Dims, args: Sequence[Any]) -> tuple[Any, Any]:
    """Return output and log-sum-exp with the mapped axis in front, and where it lies."""
    if _one_by_one(Added(*args[3:8]), Added(*dims[3:8])):
        return _looped(apply, copies, dims, args)
    batch = _batch(args[0], dims[0])
    found = apply(
        *(_joined(tensor, dim, copies) for tensor, dim in zip(args[:3], dims[:3], strict=True)),
        *_joined_rest(copies, batch, dims[3:], args[3:], False),
    )
    return tuple(_apart(part, copies) for part in found), (0, 0)


def gradients(apply: Apply, copies: int, dims: Dims, args: Sequence[Any]) -> tuple[Any, Any]:
    """Return gradients of each sample with the mapped axis in front, and where it lies."""
    of_added, added = args[0], Added(*args[8:13])
    summed = added.table if of_added else added.sinks
    if summed is not None or _one_by_one(added, Added(*dims[8:13])):
        return _looped(apply, copies, dims, args)
    batch = _batch(args[3], dims[3])
    found = apply(
        of_added,
        *(_joined(tensor, dim, copies) for tensor, dim in zip(args[1:8], dims[1:8], strict=True)),
        *_joined_rest(copies, batch, dims[8:], args[8:], of_added),
    )
    if not of_added:
        *parts, d_sinks = found
        whole = tuple(_apart(part, copies) for part in parts)
        return (*whole, d_sinks), (0, 0, 0, None)
    d_bias = _apart(found[0], copies)
    assert added.bias is not None
    if _batch(added.bias, dims[8]) == 1:
        d_bias = d_bias.sum(1, keepdim=True)
    return (d_bias,), (0,)


def _one_by_one(added: Added, dims: Added) -> bool:
    """Say whether samples differ in what the kernels take once per call, or must share a mask."""
    per_head = (dims.slopes, dims.table, dims.sinks)
    shared_mask = added.seed is not None and dims.seed is None
    return shared_mask or any(dim is not None for dim in per_head)


def _looped(apply: Apply, copies: int, dims: Dims, args: Sequence[Any]) -> tuple[Any, Any]:
    """Run the samples one after the other."""
    parts = [
        apply(
            *(
                arg.select(dim, copy) if isinstance(arg, Tensor) and dim is not None else arg
                for arg, dim in zip(args, dims, strict=True)
            )
        )
        for copy in range(copies)
    ]
    found = tuple(torch.stack(part) for part in zip(*parts, strict=True))
    return found, (0,) * len(found)


def _joined_rest(
    copies: int, batch: int, dims: Dims, args: Sequence[Any], each_bias: bool
) -> tuple[Any, ...]:
    """Join what follows the tensors of samples: what is added, the rules, the pattern's tensors."""
    added, rules = Added(*args[:5]), args[5]
    if added.bias is not None:
        bias = _joined_bias(added.bias, dims[0], copies, batch, each_bias)
        added = added._replace(bias=bias)
    if added.seed is not None:
        added = added._replace(seed=added.seed.select(dims[4], 0))
    if len(rules.places) > 1:
        rules = rules._replace(places=rules.places * copies)
    tensors, tensor_dims = args[6:], dims[6:]
    if isinstance(rules.pattern, Pattern):
        text, numbers, tensors = spell(rules.pattern)
        rules, tensor_dims = rules._replace(pattern=text, numbers=numbers), [None] * len(tensors)
    if tensors:
        tensors = joined_pattern(rules.pattern, tensors, tensor_dims, copies, batch)
    return (*added, rules, *tensors)


def _joined(tensor: Tensor | None, dim: int | None, copies: int) -> Tensor | None:
    """Return (copies × batch, …); the same memory where strides allow it."""
    if tensor is None:
        return None
    return _in_front(tensor, dim, copies).flatten(0, 1)


def _joined_bias(bias: Tensor, dim: int | None, copies: int, batch: int, each: bool) -> Tensor:
    """Join a bias, which may hold for all samples; ``each``: give every sample its own anyway."""
    if dim is None and bias.shape[0] == 1 and not each:
        return bias
    bias = _in_front(bias, dim, copies)
    return bias.expand(-1, batch, -1, -1, -1).flatten(0, 1)


def _apart(tensor: Tensor, copies: int) -> Tensor:
    return tensor.view(copies, tensor.shape[0] // copies, *tensor.shape[1:])


def _in_front(tensor: Tensor, dim: int | None, copies: int) -> Tensor:
    return tensor.expand(copies, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _batch(tensor: Tensor, dim: int | None) -> int:
    return tensor.shape[0] if dim is None else tensor.movedim(dim, 0).shape[1]

"""Checks the query, key and value of an operation, and brings them to one form."""

from math import prod

import torch
from torch import Tensor

from headwise._checks import refuse_dtypes, refuse_shapes
from headwise.errors import PatternError
from headwise.patterns.dense import as_mask


def fit_together(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Say at a glance whether the tensors of a plain call fit together."""
    if not (query.ndim == key.ndim == value.ndim == 4 and query.dtype is key.dtype is value.dtype):
        return False
    batch, q_heads, _, head_dim = query.shape
    key_batch, kv_heads, kv_len, key_dim = key.shape
    value_batch, value_heads, value_len, _ = value.shape
    return (
        batch == key_batch == value_batch
        and kv_heads == value_heads
        and kv_len == value_len
        and head_dim == key_dim
        and kv_heads > 0
        and q_heads % kv_heads == 0
        and query.is_floating_point()
        and query.is_cpu
        and key.is_cpu
        and value.is_cpu
    )


def check_tensors(caller: str, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse tensors that do not fit together, and say what is wrong."""
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise refuse_dtypes(
            caller,
            "query, key and value must share one floating-point dtype",
            "convert them with .to(dtype)",
            query=query,
            key=key,
            value=value,
        )
    if not query.device == key.device == value.device:
        raise refuse_dtypes(
            caller,
            "query, key and value must be on one device",
            "move them with .to(device)",
            query=query,
            key=key,
            value=value,
        )
    q_shape, k_shape, v_shape = query.shape, key.shape, value.shape
    if not len(q_shape) == len(k_shape) == len(v_shape) >= 3:
        raise refuse_shapes(
            caller,
            "query, key and value must have the same number of dimensions, at least 3",
            "the layout is (batch…, heads, length, dim); (heads, length, dim) is one sample",
            query=query,
            key=key,
            value=value,
        )
    if not q_shape[:-3] == k_shape[:-3] == v_shape[:-3]:
        raise refuse_shapes(
            caller,
            "query, key and value must have the same leading dimensions",
            "expand them yourself, as in key.expand(batch, -1, -1, -1); nothing is broadcast",
            query=query,
            key=key,
            value=value,
        )
    if k_shape[:-1] != v_shape[:-1]:
        raise refuse_shapes(
            caller,
            "key and value must have the same heads and length",
            "there is one value for every key; only the last dimension may differ",
            query=query,
            key=key,
            value=value,
        )
    if q_shape[-1] != k_shape[-1]:
        raise refuse_shapes(
            caller,
            f"query and key must have the same head_dim, got {q_shape[-1]} and {k_shape[-1]}",
            "the layout is (batch…, heads, length, dim)",
            query=query,
            key=key,
            value=value,
        )
    q_heads, kv_heads = q_shape[-3], k_shape[-3]
    if q_heads % kv_heads if kv_heads else q_heads:
        raise refuse_shapes(
            caller,
            f"kv_heads must divide q_heads, got {kv_heads} and {q_heads}",
            "pass key and value with 1 head (multi-query) or a divisor of q_heads (grouped)",
            query=query,
            key=key,
            value=value,
        )


def as_one_batch(tensor: Tensor) -> Tensor:
    """Return the tensor with all leading dimensions joined to one."""
    return tensor.unsqueeze(0) if tensor.ndim == 3 else tensor.flatten(0, -4)


def as_autocast(tensor: Tensor) -> Tensor:
    """Return the tensor in the dtype that autocast asks for, as torch's own attention does."""
    kind = tensor.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return tensor
    if tensor.dtype == torch.float64 or not tensor.is_floating_point():
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def padded_keys(caller: str, kv_mask: Tensor, key: Tensor) -> Tensor:
    """Return which keys are padding, (batch, kv_len); leading dimensions may have been joined."""
    real = as_mask(f"{caller}, kv_mask", kv_mask).to(key.device)
    lead, kv_len = key.shape[:-3], key.shape[-2]
    # The size of a torch.Size is a constant to compilers.
    samples = prod(lead)
    if real.shape in ((*lead, kv_len), (samples, kv_len)):
        return ~real.reshape(samples, kv_len)
    raise PatternError(
        f"{caller}: kv_mask must be (batch, kv_len), {(samples, kv_len)} here, "
        f"got {tuple(real.shape)}\n"
        "  hint: True = real token; kv_mask.expand(batch, -1) repeats one row; a mask over queries "
        "and keys is for headwise.attend, as Dense(mask)"
    )

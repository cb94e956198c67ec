"""Checks one attention call and fills in its defaults."""

from math import inf, isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from headwise._checks import refuse_dtypes, refuse_shapes
from headwise._forks import alone_after_fork
from headwise.errors import DtypeError, PatternError
from headwise.ops.softmax.call import Call
from headwise.ops.softmax.settle_bias import NO_BIAS, Bias, settle_bias
from headwise.patterns.base import Pattern
from headwise.patterns.causal import Full
from headwise.patterns.grid import Offset, grids
from headwise.patterns.wording import check_pattern, check_sizes


class Extras(NamedTuple):
    """The arguments of a call besides its tensors, as the user gave them."""

    bias: Bias | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None
    dropout_p: float
    q_offset: Offset | None
    kv_offset: Offset


@alone_after_fork
def settle(
    caller: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern | None,
    extras: Extras,
    want_lse: bool,
) -> Call:
    """Return the call with four dimensions and every default filled in, or refuse it."""
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        kinds = ", ".join(type(given).__name__ for given in (query, key, value))
        raise DtypeError(f"{caller}: query, key and value must be tensors, got {kinds}")
    if torch._C._is_any_autocast_enabled():
        query, key, value = _autocast(query), _autocast(key), _autocast(value)
    if not _fit(query, key, value):
        _check_tensors(caller, query, key, value)
    sinks = extras.sinks
    batch = query.shape[0] if query.ndim == 4 else query.shape[:-3].numel()
    places = grids(query.shape[-2], key.shape[-2], extras.q_offset, extras.kv_offset, batch)
    added = NO_BIAS
    if extras.bias is not None:
        added = settle_bias(caller, extras.bias, query, key, places)
    if sinks is not None:
        _check_sinks(caller, sinks, query)
    wants_gradient = torch.is_grad_enabled() and (
        query.requires_grad
        or key.requires_grad
        or value.requires_grad
        or added.wants_gradient
        or (sinks is not None and sinks.requires_grad)
    )
    if query.ndim != 4:
        query, key, value = _one_batch(query), _one_batch(key), _one_batch(value)
    _check_numbers(caller, extras)
    if len(places) != 1 and len(places) != batch:
        raise PatternError(
            f"{caller}: offsets must be one int, or one per sample, "
            f"got {len(places)} for {batch} samples\n"
            "  hint: the samples are the leading dimensions of query"
        )
    return Call(
        query,
        key,
        value,
        _settle_pattern(caller, pattern, query),
        added.bias,
        added.slopes,
        added.distances,
        max(query.shape[3], 1) ** -0.5 if extras.scale is None else float(extras.scale),
        extras.softcap,
        sinks,
        extras.dropout_p,
        places,
        want_lse,
        wants_gradient,
    )


def _check_numbers(caller: str, extras: Extras) -> None:
    scale, softcap, dropout_p = extras.scale, extras.softcap, extras.dropout_p
    for name, number, hint in (
        ("scale", scale, "multiply query by it instead, and pass scale=1.0"),
        ("softcap", softcap, "pass softcap.item(); it is not learned"),
        ("dropout_p", dropout_p, "pass dropout_p.item(); it is not learned"),
    ):
        if isinstance(number, Tensor) and number.requires_grad:
            raise ValueError(
                f"{caller}: {name} must be a number, got a tensor that wants a gradient\n"
                f"  hint: {hint}"
            )
    if scale is not None and not isfinite(scale):
        raise ValueError(
            f"{caller}: scale must be a finite number, got {scale}\n"
            "  hint: leave scale out for head_dim ** -0.5"
        )
    if softcap is not None and not 0 < softcap < inf:
        raise ValueError(
            f"{caller}: softcap must be above 0 and finite, got {softcap}\n"
            "  hint: leave softcap out for scores without a cap"
        )
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(
            f"{caller}: dropout_p must lie between 0 and 1, got {dropout_p}\n"
            "  hint: dropout_p is the share of weights set to zero"
        )


def _fit(query: Tensor, key: Tensor, value: Tensor) -> bool:
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


def _check_tensors(caller: str, query: Tensor, key: Tensor, value: Tensor) -> None:
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


def _settle_pattern(caller: str, pattern: Pattern | None, query: Tensor) -> Pattern | None:
    if pattern is None:
        return None
    if not isinstance(pattern, Pattern):
        check_pattern(caller, pattern)
    if type(pattern) is Full:
        return None
    if pattern.batch_size is None and pattern.num_heads is None:
        return pattern
    check_sizes(caller, pattern, query.shape[0], query.shape[1])
    return pattern


def _check_sinks(caller: str, sinks: Tensor, query: Tensor) -> None:
    if not isinstance(sinks, Tensor) or not sinks.is_floating_point():
        got = sinks.dtype if isinstance(sinks, Tensor) else type(sinks).__name__
        raise DtypeError(
            f"{caller}: sinks must be a floating-point tensor, got {got}\n"
            "  hint: give one number per query head, (q_heads,)"
        )
    if sinks.device != query.device:
        raise refuse_dtypes(
            caller,
            "sinks must be on the device of query",
            "move them with .to(device)",
            query=query,
            sinks=sinks,
        )
    if sinks.shape != (query.shape[-3],):
        raise refuse_shapes(
            caller,
            "sinks must hold one number per query head",
            "give a tensor of shape (q_heads,)",
            query=query,
            sinks=sinks,
        )


def _one_batch(tensor: Tensor) -> Tensor:
    """Return the tensor with all leading dimensions joined to one."""
    return tensor.unsqueeze(0) if tensor.ndim == 3 else tensor.flatten(0, -4)


def _autocast(tensor: Tensor) -> Tensor:
    """Return the tensor in the dtype that autocast asks for, as torch's own attention does."""
    kind = tensor.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return tensor
    if tensor.dtype == torch.float64 or not tensor.is_floating_point():
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))

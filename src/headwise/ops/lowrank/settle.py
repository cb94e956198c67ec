"""Checks one call of low-rank attention and fills in its defaults."""

from math import isfinite

import torch
from torch import Tensor

from headwise._checks import is_one_number, refuse_dtypes, refuse_shapes
from headwise._forks import alone_after_fork
from headwise.errors import DtypeError, ShapeError
from headwise.ops.given_tensors import (
    as_autocast,
    as_one_batch,
    check_tensors,
    fit_together,
    padded_keys,
)
from headwise.ops.lowrank.call import LowRankCall
from headwise.ops.lowrank.project import first_columns


@alone_after_fork
def settle(
    caller: str,
    tensors: tuple[Tensor, Tensor, Tensor],
    projections: tuple[Tensor, Tensor],
    kv_mask: Tensor | None,
    scale: float | None,
) -> LowRankCall:
    """Return the call with four dimensions and a projection's column for each key, or refuse it."""
    if not all(isinstance(given, Tensor) for given in (*tensors, *projections)):
        kinds = ", ".join(type(given).__name__ for given in (*tensors, *projections))
        raise DtypeError(
            f"{caller}: query, key, value and both projections must be tensors, got {kinds}\n"
            "  hint: a projection is (rank, length) or (kv_heads, rank, length)"
        )
    query, key, value = tensors
    if torch._C._is_any_autocast_enabled():
        query, key, value = as_autocast(query), as_autocast(key), as_autocast(value)
        projections = as_autocast(projections[0]), as_autocast(projections[1])
    if not fit_together(query, key, value):
        check_tensors(caller, query, key, value)
    _check_scale(caller, scale)
    for_keys, for_values = projections
    _check_projection(caller, "key", for_keys, key)
    _check_projection(caller, "value", for_values, value)
    if for_keys.shape[-2] != for_values.shape[-2]:
        raise refuse_shapes(
            caller,
            "both projections must have the same rank",
            "every projected key has one projected value; (rank, length) or "
            "(kv_heads, rank, length)",
            key_projection=for_keys,
            value_projection=for_values,
        )
    padded = None if kv_mask is None else padded_keys(caller, kv_mask, key)
    if query.ndim != 4:
        query, key, value = as_one_batch(query), as_one_batch(key), as_one_batch(value)
    kv_len = key.shape[2]
    return LowRankCall(
        query,
        key,
        value,
        first_columns(for_keys, kv_len),
        first_columns(for_values, kv_len),
        padded,
        max(query.shape[3], 1) ** -0.5 if scale is None else float(scale),
    )


def _check_projection(caller: str, of: str, projection: Tensor, tokens: Tensor) -> None:
    name = f"{of}_projection"
    shown = {of: tokens, name: projection}
    if projection.dtype != tokens.dtype or projection.device != tokens.device:
        raise refuse_dtypes(
            caller,
            f"{name} must have the dtype and device of key and value",
            f"convert it with .to({of})",
            **shown,
        )
    kv_heads = tokens.shape[-3]
    if projection.ndim not in (2, 3) or projection.shape[:-2] not in ((), (kv_heads,)):
        raise refuse_shapes(
            caller,
            f"{name} must be (rank, length), or (kv_heads, rank, length) with {kv_heads} heads",
            "all samples share it; one for all heads has two dimensions",
            **shown,
        )
    if tokens.shape[-2] > projection.shape[-1]:
        raise ShapeError(
            f"{caller}: {name} must have a column for each key, got {projection.shape[-1]} columns "
            f"for {tokens.shape[-2]} keys\n"
            "  hint: cut the input, or learn more columns, one for each place; shorter inputs use "
            "the first ones"
        )


def _check_scale(caller: str, scale: float | None) -> None:
    if isinstance(scale, Tensor) and scale.requires_grad:
        raise ValueError(
            f"{caller}: scale must be a number, got a tensor that wants a gradient\n"
            "  hint: multiply query by it instead, and pass scale=1.0"
        )
    if scale is not None and not (is_one_number(scale) and isfinite(scale)):
        raise ValueError(
            f"{caller}: scale must be a finite number, got {scale}\n"
            "  hint: leave scale out for head_dim ** -0.5"
        )

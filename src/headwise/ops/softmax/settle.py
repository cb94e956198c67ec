"""Checks one attention call and fills in its defaults."""

from math import inf, isfinite, prod
from typing import NamedTuple

import torch
from torch import Tensor

from headwise._checks import is_one_number, refuse_dtypes, refuse_shapes
from headwise._forks import alone_after_fork
from headwise.errors import DtypeError, PatternError
from headwise.ops.given_tensors import as_autocast, as_one_batch, check_tensors, fit_together
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
        query, key, value = as_autocast(query), as_autocast(key), as_autocast(value)
    if not fit_together(query, key, value):
        check_tensors(caller, query, key, value)
    sinks = extras.sinks
    batch = query.shape[0] if query.ndim == 4 else prod(query.shape[:-3])
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
        query, key, value = as_one_batch(query), as_one_batch(key), as_one_batch(value)
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
    if scale is not None and not (is_one_number(scale) and isfinite(scale)):
        raise ValueError(
            f"{caller}: scale must be a finite number, got {scale}\n"
            "  hint: leave scale out for head_dim ** -0.5"
        )
    if softcap is not None and not (is_one_number(softcap) and 0 < softcap < inf):
        raise ValueError(
            f"{caller}: softcap must be above 0 and finite, got {softcap}\n"
            "  hint: leave softcap out for scores without a cap"
        )
    if not (is_one_number(dropout_p) and 0.0 <= dropout_p <= 1.0):
        raise ValueError(
            f"{caller}: dropout_p must lie between 0 and 1, got {dropout_p}\n"
            "  hint: dropout_p is the share of weights set to zero"
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

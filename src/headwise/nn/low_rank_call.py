"""What a layer may ask of low-rank attention, and its keys and values projected along length."""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.errors import PatternError
from headwise.nn.length_projections import LengthProjection
from headwise.nn.mechanism import AttentionCall
from headwise.ops.given_tensors import padded_keys
from headwise.ops.lowrank.padding import cleared
from headwise.ops.softmax.settle_bias import Bias
from headwise.patterns import Full, KeyMask, Pattern
from headwise.patterns.wording import pattern_name

_NAME = "LowRank"


class Reduced(NamedTuple):
    """Projected keys and values.

    Attributes:
        keys: (batch, kv_heads, rows, head_dim).
        values: (batch, kv_heads, rows, value_dim).
        shown: Which of them are in the softmax; ``None`` = all.
        real: Which tokens are real, (batch or 1, kv_len); ``None`` = all.
    """

    keys: Tensor
    values: Tensor
    shown: KeyMask | None
    real: Tensor | None


def refuse_pairs(given: Pattern | None, bias: Bias | None) -> None:
    """Refuse what is said of pairs of a query and a key.

    Raises:
        PatternError: A pattern that hides some pairs.
        NotImplementedError: A bias.
    """
    pattern = None if given is None else given.simplified()
    if pattern is not None and type(pattern) is not Full:
        raise PatternError(
            f"{_NAME}: projected tokens hold something of all tokens, so none can be hidden from "
            f"some queries, got {pattern_name(pattern)}\n"
            "  hint: padding is kv_mask=; for causal attention use "
            "mechanism=headwise.nn.LinearAttention(…), or no mechanism and "
            "pattern=headwise.Causal() & headwise.Window(…, 0)"
        )
    if bias is not None:
        raise NotImplementedError(
            f"{_NAME}: there are no scores of pairs of tokens, so bias cannot be added, and the "
            "layer asks for it\n"
            "  hint: leave the bias out; positions.Rotary, Sinusoidal and Learned need none; "
            "softmax attention, mechanism=None, has it"
        )


def reduced(
    call: AttentionCall, for_keys: LengthProjection, for_values: LengthProjection
) -> Reduced:
    """Project keys and values, padded ones as zeros.

    ``headwise.lowrank_attend`` does this with projections that are matrices and nothing else;
    windows have none, and a layer adds softcap, sinks and dropout behind them.
    """
    key, value, real = _cleared(call)
    keys, values = for_keys(key, real), for_values(value, real)
    return Reduced(keys, values, _shown(for_keys, real), real)


def spelled(
    call: AttentionCall,
    for_keys: LengthProjection,
    for_values: LengthProjection,
    work: torch.dtype,
) -> Reduced:
    """Do it by the definition: keys and values times matrices, in the dtype ``work``."""
    key, value, real = _cleared(call)
    keys, values = (
        torch.matmul(module.matrix(tokens.shape[2], real).to(tokens.device, work), tokens.to(work))
        for module, tokens in ((for_keys, key), (for_values, value))
    )
    return Reduced(keys, values, _shown(for_keys, real), real)


def _cleared(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return keys and values with zeros at padding, and which are real."""
    padded = None if call.kv_mask is None else padded_keys(_NAME, call.kv_mask, call.key)
    key, value = cleared(call.key, call.value, padded)
    return key, value, None if padded is None else ~padded


def _shown(module: LengthProjection, real: Tensor | None) -> KeyMask | None:
    shown = None if real is None else module.shown(real)
    return None if shown is None else KeyMask(shown)

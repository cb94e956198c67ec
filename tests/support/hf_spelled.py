"""Attention of transformers models spelled out, with a pattern or a mechanism by its definition."""

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import sdpa_mask

import headwise as hw
from headwise.patterns import Pattern
from tests.support.hf_tiny import tiny

_ASKED = "spelled_out"
_CROSS = ("encoder_attn", "EncDecAttention")


def spelled(name: str, replacement: Any, layers: list[int] | None = None) -> Any:
    """Build a model of a family whose self-attention is spelled out, padding and all.

    Args:
        name: The family.
        replacement: A pattern, a mechanism, or ``None``.
        layers: Which of the modules have it; ``None`` = all.
    """
    transformers.AttentionInterface.register(_ASKED, _attention)
    transformers.AttentionMaskInterface.register(_ASKED, _mask)
    model = tiny(name, "eager")
    model.set_attn_implementation(_ASKED)
    for number, module in enumerate(self_attention(model)):
        chosen = layers is None or number in layers
        module.__dict__["replacement"] = replacement if chosen else None
    return model


def self_attention(model: nn.Module) -> list[nn.Module]:
    """Return the modules that attend to their own sequence, in the order of the model."""
    return [
        part
        for name, part in model.named_modules()
        if type(part).__name__.endswith("Attention")
        and not name.endswith(_CROSS)
        and not any(type(inner).__name__.endswith("SelfAttention") for inner in part.children())
    ]


def _mask(*given: Any, **named: Any) -> Any:
    named.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    return sdpa_mask(*given, **named)


def _attention(  # noqa: PLR0913
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    mask: Any = attention_mask
    replacement = getattr(module, "replacement", None)
    if replacement is not None and not isinstance(replacement, Pattern):
        return _by_definition(replacement, module, (query * scaling, key, value), mask), None
    group = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(group, 1) for part in (key, value))
    scores = query @ key.mT * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if position_bias is not None:
        scores = scores + position_bias
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool) if mask is None else mask
    if isinstance(replacement, Pattern):
        allowed = allowed & replacement.dense(*scores.shape[-2:])
    scores = scores.masked_fill(~allowed, float("-inf"))
    if s_aux is not None:
        sink = s_aux.reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1).to(scores)
        scores = torch.cat([scores, sink], -1)
    weights = torch.where(allowed.any(-1, keepdim=True), scores, 0.0).softmax(-1)
    weights = weights[..., : key.shape[2]].masked_fill(~allowed, 0.0)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def _by_definition(
    mechanism: Any, module: nn.Module, heads: tuple[Tensor, ...], mask: Tensor | None
) -> Tensor:
    query, key, value = heads
    real = None if mask is None else mask.any(1).any(1).expand(key.shape[0], -1)
    causal = bool(getattr(module, "is_causal", False))
    call = hw.nn.AttentionCall(
        query * query.shape[-1] ** 0.5,
        key,
        value,
        pattern=hw.Causal() if causal else None,
        kv_mask=real,
    )
    found: Tensor = mechanism.reference(call)
    return found.transpose(1, 2).contiguous()

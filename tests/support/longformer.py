"""Longformer's attention spelled out densely, and transformers' own with the same weights."""

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

import headwise as hw

HEADS, WIDTH = 2, 22
PROJECTIONS = {
    "W_q": "self.query",
    "W_k": "self.key",
    "W_v": "self.value",
    "W_o": "output.dense",
    "W_q_global": "self.query_global",
    "W_k_global": "self.key_global",
    "W_v_global": "self.value_global",
}


def tiny_longformer(window: int, layers: int = 1) -> Any:
    """Build transformers' model with random weights, in evaluation mode."""
    config = transformers.LongformerConfig(
        vocab_size=61,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=layers,
        intermediate_size=40,
        attention_window=[window] * layers,
        max_position_embeddings=64,
        pad_token_id=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model: Any = transformers.LongformerModel(config)
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.3)
    return model.eval()


def with_weights_of(attention: nn.Module, window: int) -> hw.nn.LongformerAttention:
    """Return our layer with the weights of transformers' ``LongformerAttention``."""
    theirs = attention.state_dict()
    layer = hw.nn.LongformerAttention(WIDTH, HEADS, window)
    layer.load_state_dict(
        {
            f"{ours}.{kind}": theirs[f"{name}.{kind}"]
            for ours, name in PROJECTIONS.items()
            for kind in ("weight", "bias")
        }
    )
    return layer


def their_context(attention: Any, x: Tensor, chosen: Tensor, real: Tensor, window: int) -> Tensor:
    """Run transformers' attention without the norm behind it, padded to its windows and cut."""
    length = x.shape[1]
    rest = -length % window
    kinds = torch.where(real, chosen.long(), -1).to(x.dtype) * torch.finfo(x.dtype).max
    kinds = functional.pad(kinds, (0, rest), value=torch.finfo(x.dtype).min)
    found = attention.self(
        functional.pad(x, (0, 0, 0, rest)),
        attention_mask=kinds,
        is_index_masked=kinds < 0,
        is_index_global_attn=kinds > 0,
        is_global_attn=bool((kinds > 0).any()),
    )
    output: Tensor = attention.output.dense(found[0])
    return output[:, :length]


def neighbours(
    length: int, windows: list[int], dilations: list[int] | None = None, causal: bool = False
) -> Tensor:
    """Say who is in whose window, (heads, length, length)."""
    gap = torch.arange(length) - torch.arange(length).unsqueeze(1)
    steps = dilations or [1] * len(windows)
    near = [
        (gap.abs() <= window // 2 * step) & (gap % step == 0)
        for window, step in zip(windows, steps, strict=True)
    ]
    found = torch.stack(near)
    return found & (gap <= 0) if causal else found


def spelled(
    layer: hw.nn.LongformerAttention, x: Tensor, near: Tensor, chosen: Tensor, real: Tensor
) -> Tensor:
    """Compute the layer with every score written down, in the dtype of ``x``."""
    both = real.unsqueeze(2) & real.unsqueeze(1)
    before = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
    before = before.tril() if layer.causal else before
    seen = (near | chosen[:, None, None, :]) & (both & before).unsqueeze(1)
    local = _attended(layer, x, "", seen)
    asked = _attended(layer, x, "_global", (both & before).unsqueeze(1))
    context = torch.where((chosen & real)[:, None, :, None], asked, local)
    return _linear(layer, "W_o", context.transpose(1, 2).flatten(2))


def _attended(layer: hw.nn.LongformerAttention, x: Tensor, kind: str, seen: Tensor) -> Tensor:
    q, k, v = (
        _linear(layer, f"W_{part}{kind}", x).view(*x.shape[:2], layer.num_heads, -1).transpose(1, 2)
        for part in "qkv"
    )
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, float("-inf"))
    closed = ~seen.any(-1, keepdim=True)
    weights = scores.masked_fill(closed, 0.0).softmax(-1).masked_fill(closed, 0.0)
    output: Tensor = weights @ v
    return output


def _linear(layer: hw.nn.LongformerAttention, name: str, x: Tensor) -> Tensor:
    projection: Any = layer.get_submodule(name)
    bias = None if projection.bias is None else projection.bias.to(x.dtype)
    found: Tensor = functional.linear(x, projection.weight.to(x.dtype), bias)
    return found

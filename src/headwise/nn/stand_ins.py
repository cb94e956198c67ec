"""Tensors that stand for those of a call that is only planned."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from headwise.nn.attention import MultiHeadAttention


def projected_stand_ins(
    layer: "MultiHeadAttention", query: Tensor, key: Tensor, value: Tensor, kv_len: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what stands for queries, keys and values with their heads split.

    Args:
        layer: The layer that would project them.
        query: Its inputs.
        key: Its inputs.
        value: Its inputs.
        kv_len: Keys in all, those of a cache included.
    """
    lead, width, heads = query.shape[:-2], layer.d_k, layer.num_kv_heads
    q_sizes = (*lead, layer.num_heads, query.shape[-2], width)
    return (
        _stand_in(query, q_sizes, query, layer.W_q, layer.q_norm),
        _stand_in(key, (*lead, heads, kv_len, width), key, layer.W_k, layer.k_norm),
        _stand_in(value, (*lead, heads, kv_len, layer.value_dim), value, layer.W_v),
    )


def context_stand_in(layer: "MultiHeadAttention", query: Tensor, *projected: Tensor) -> Tensor:
    """Return what stands for the mixed values, heads combined."""
    width = layer.num_heads * layer.value_dim
    learned = layer.mechanism if isinstance(layer.mechanism, nn.Module) else layer.positions
    return _stand_in(query, (*query.shape[:-1], width), *projected, layer.sinks, learned)


def _stand_in(x: Tensor, shape: tuple[int, ...], *sources: Tensor | nn.Module | None) -> Tensor:
    """Return zeros without memory, with the dtype of ``x``, for what is made of ``sources``.

    They want a gradient where one of the sources does.
    """
    wanted = torch.is_grad_enabled() and any(_wants_gradient(source) for source in sources)
    return x.new_zeros(()).requires_grad_(wanted).expand(shape)


def _wants_gradient(source: Tensor | nn.Module | None) -> bool:
    if isinstance(source, nn.Module):
        return any(parameter.requires_grad for parameter in source.parameters())
    return source is not None and source.requires_grad

"""Softmax attention through the compiled kernels."""

import torch
from torch import Tensor

from headwise import _native
from headwise.ops.softmax.call import Call, Computed
from headwise.patterns.lowering import lower


def run(call: Call) -> Computed:
    """Return output and log-sum-exp; the call must have passed ``refusals.native``."""
    tiles = _live_tiles(call)
    query, key, value = _dense_rows(call.query), _dense_rows(call.key), _dense_rows(call.value)
    batch, heads, q_len, _ = query.shape
    output = _like(query, value.shape[3])
    lse = (
        torch.empty(batch, heads, q_len, dtype=torch.float32, device="cpu")
        if call.want_lse
        else None
    )
    bias = None
    if call.bias is not None:
        bias = call.bias.detach().resolve_neg().expand(batch, heads, q_len, key.shape[2])
    threads = torch.get_num_threads()
    _native.kernels.attend(query, key, value, output, lse, bias, tiles, call.scale, threads)
    return Computed(output, lse)


def _live_tiles(call: Call) -> object | None:
    """Return the live tiles in the kernels' own form; ``None`` where all is allowed."""
    layout = None if call.pattern is None else lower(call.pattern, call.places)
    if layout is None:
        return None
    if layout.for_kernels is None:
        tables = (layout.which, layout.starts, layout.entries, layout.bitmaps)
        layout.for_kernels = _native.kernels.LiveTiles(*tables)
    return layout.for_kernels


def _dense_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with an innermost stride of 1, copied where it has another."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor if tensor.stride(3) == 1 or tensor.shape[3] < 2 else tensor.contiguous()


def _like(query: Tensor, value_dim: int) -> Tensor:
    """Allocate the output with heads inside lengths where the query has them so.

    Joining the heads again is then free, as it is for torch's own attention.
    """
    batch, heads, q_len, _ = query.shape
    if query.stride(1) < query.stride(2):
        return query.new_empty(batch, q_len, heads, value_dim).transpose(1, 2)
    return query.new_empty(batch, heads, q_len, value_dim)

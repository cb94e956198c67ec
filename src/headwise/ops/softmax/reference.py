"""The definition of softmax attention, in plain PyTorch; every fast path is tested against it.

Everything is computed in float32 or wider and spelled out, (batch, heads, q_len, kv_len). Numbers
that are not finite are kept out of the matrix products and put back only where they may be seen,
so that a masked NaN touches neither results nor gradients.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from headwise.ops.softmax import dropout
from headwise.ops.softmax.call import Call, Computed


def run(call: Call) -> Computed:
    """Weigh values by how well each query matches each key."""
    work = torch.promote_types(call.query.dtype, torch.float32)
    with _own_precision(call):
        weights, lse, allowed = _softmax(call, call.allowed(), _bias(call), work)
        if call.dropout_p > 0.0:
            weights = _dropped(weights, call.dropout_p)
        value = call.value.to(work).repeat_interleave(call.group, 1)
        output = _mix(weights, allowed, value)
    return Computed(output.to(call.query.dtype), lse)


def weights(call: Call, allowed: Tensor | None, which: Tensor) -> Tensor:
    """Return the softmax weights of the queries ``which``, in float32 or wider.

    Args:
        call: Cut to these queries, with one key head for each query head; see ``selection.cut``.
        allowed: Which pairs may meet; ``None`` = all.
        which: The places of the queries in the whole call.
    """
    work = torch.promote_types(call.query.dtype, torch.float32)
    with _own_precision(call):
        return _softmax(call, allowed, _bias(call, which), work)[0]


def _own_precision(call: Call) -> AbstractContextManager[object]:
    """Keep autocast out of the sums."""
    device = call.query.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


def _bias(call: Call, rows: Tensor | None = None) -> Tensor | None:
    """Spell out what is added to the scores of ``rows``; a tensor has been cut to them before."""
    if call.slopes is not None:
        return -call.slopes.view(-1, 1, 1) * _gaps(call, rows).abs().unsqueeze(1)
    if call.distances is not None:
        table, lowest = call.distances
        return table[:, _gaps(call, rows) - lowest].transpose(0, 1)
    return call.bias


def _gaps(call: Call, rows: Tensor | None) -> Tensor:
    """Return position of the query minus position of the key, (1 or batch, rows, kv_len)."""
    device = call.query.device
    shifts = [place.q_offset - place.kv_offset for place in call.places]
    starts = torch.tensor(shifts, dtype=torch.int64, device=device).view(-1, 1, 1)
    queries = torch.arange(call.query.shape[2], device=device) if rows is None else rows.to(device)
    return starts + queries.unsqueeze(1) - torch.arange(call.key.shape[2], device=device)


def _dropped(weights: Tensor, share: float) -> Tensor:
    """Return the weights that dropout keeps, made larger for those it does not."""
    batch, heads, q_len, kv_len = weights.shape
    seed = dropout.draw_seed().to(weights.device)
    kept = dropout.keep(seed, share, (batch, heads, q_len, kv_len))
    return weights.masked_fill(~kept, 0.0) * (1.0 / (1.0 - share) if share < 1.0 else 0.0)


def _softmax(
    call: Call, pattern: Tensor | None, bias: Tensor | None, work: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights, their log-sum-exp, and which pairs are allowed."""
    key = call.key.to(work).repeat_interleave(call.group, 1)
    scores = _match(call.query.to(work), key) * call.scale
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    allowed = torch.ones_like(scores, dtype=torch.bool)
    if pattern is not None:
        allowed = allowed & pattern
    if bias is not None:
        closed = bias == float("-inf")
        scores = scores + bias.masked_fill(closed, 0.0)
        allowed = allowed & ~closed
    scores = scores.masked_fill(~allowed, float("-inf"))
    if call.sinks is not None:
        sinks = call.sinks.to(work).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], -1)
    empty = ~allowed.any(-1, keepdim=True)
    # A closed row has no softmax; zeros in its place keep NaN out of the gradient, too.
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    lse = scores.masked_fill(empty, 0.0).logsumexp(-1).masked_fill(empty[..., 0], float("-inf"))
    return weights[..., : call.key.shape[2]], lse, allowed


def _match(query: Tensor, key: Tensor) -> Tensor:
    """Return ``query @ key^T``, without a gradient where a vector is not finite."""
    odd_query, odd_key = (~t.isfinite().all(-1) for t in (query, key))
    clean = _finite(query) @ _finite(key).transpose(-1, -2)
    exact = query.detach() @ key.detach().transpose(-1, -2)
    return torch.where(odd_query.unsqueeze(-1) | odd_key.unsqueeze(-2), exact, clean)


def _mix(weights: Tensor, allowed: Tensor, value: Tensor) -> Tensor:
    """Return ``weights @ value``, where a value that is not finite counts for those who see it."""
    output = weights @ _finite(value)
    infinite = value.isinf()
    counted = (weights > 0).to(value.dtype)
    above = counted @ (infinite & (value > 0)).to(value.dtype) > 0
    below = counted @ (infinite & (value < 0)).to(value.dtype) > 0
    # NaN for those who see it, and infinity times a weight that has vanished.
    lost = allowed.to(value.dtype) @ value.isnan().to(value.dtype) > 0
    lost = lost | ((allowed & (weights == 0)).to(value.dtype) @ infinite.to(value.dtype) > 0)
    output = output.masked_fill(above, float("inf")).masked_fill(below, float("-inf"))
    return output.masked_fill(lost | (above & below), float("nan"))


def _finite(numbers: Tensor) -> Tensor:
    return numbers.masked_fill(~numbers.isfinite(), 0.0)

"""Attention of one call to what a layer holds: in one part or several, rows alike or not."""

from functools import reduce
from operator import add, and_, sub
from typing import NamedTuple

import torch
from torch import Tensor

from headwise._checks import refuse_shapes
from headwise.cache.masks import AmongAll, columns_of, real_keys
from headwise.cache.row_counts import RowCounts, as_tensor, each, longest, position_counts
from headwise.cache.storage import Held, HeldWhole, Part
from headwise.ops import Attended, StoredKeys, attend_stored, attend_stored_with_lse, merge
from headwise.ops.softmax.settle import Extras
from headwise.patterns import Pattern
from headwise.patterns.wording import check_pattern

_CALLER = "KVCache.attend"


class _Call(NamedTuple):
    """What the kernels are asked about one part."""

    stored: StoredKeys
    pattern: Pattern | None
    extras: Extras


def attend_held(
    query: Tensor,
    held: Held,
    pattern: Pattern | None,
    extras: Extras,
    backend: str,
    q_counts: RowCounts | None,
) -> Tensor:
    """Attend to what a layer holds.

    Args:
        query: (batch, q_heads, q_len, head_dim).
        held: What a call sees of the layer.
        pattern: Who may attend to whom among all tokens.
        extras: The other arguments of ``attend``; positions are those of all tokens.
        backend: As in ``attend``.
        q_counts: How many queries of each row are real; ``None`` = all.
    """
    if isinstance(held, HeldWhole) and isinstance(held.lengths, int) and q_counts is None:
        return attend_stored(query, held.whole, pattern, extras, backend)
    if pattern is not None:
        check_pattern("attend", pattern)
    q_len = query.shape[-2]
    real = q_len if q_counts is None else q_counts
    kv_offset = position_counts("kv_offset", extras.kv_offset, held.batch, _CALLER)
    if extras.q_offset is None:
        q_offset = each(_beside_last, kv_offset, held.lengths, real)
    else:
        q_offset = position_counts("q_offset", extras.q_offset, held.batch, _CALLER)
    extras = extras._replace(q_offset=q_offset)
    calls = [
        _call(query, part, held, pattern, extras, kv_offset)
        for part in held.parts(each(sub, q_offset, kv_offset), kv_offset)
    ]
    if len(calls) == 1:
        output = attend_stored(query, *calls[0], backend)
    else:
        output = _merged(query, calls, extras.sinks, backend)
    return output if real == q_len else _only_real(output, real)


def _beside_last(kv_offset: int, length: int, queries: int) -> int:
    """Return where the first query stands when the last one stands beside the last key."""
    return kv_offset + length - queries


def _call(
    query: Tensor,
    part: Part,
    held: Held,
    pattern: Pattern | None,
    extras: Extras,
    kv_offset: RowCounts,
) -> _Call:
    """Return the call of one part: its positions, its share of masks and bias, its own rules."""
    stored, first, rule = part
    total, kv_len = longest(held.lengths), stored.kv_len
    if pattern is not None and (first != 0 or kv_len != total):
        pattern = AmongAll(pattern, first, total)
    real = real_keys(held.lengths, kv_offset, first, held.batch, kv_len)
    rules = [each_rule for each_rule in (pattern, rule, real) if each_rule is not None]
    if isinstance(extras.bias, Tensor):
        bias = columns_of(extras.bias, first, kv_len, held.lengths, query)
        extras = extras._replace(bias=bias)
    extras = extras._replace(kv_offset=each(add, kv_offset, first))
    return _Call(stored, reduce(and_, rules) if rules else None, extras)


def _merged(query: Tensor, calls: list[_Call], sinks: Tensor | None, backend: str) -> Tensor:
    """Join the parts by their log-sum-exp; sinks are a further part, without a value."""
    parts = []
    for stored, pattern, extras in calls:
        alone = extras._replace(sinks=None)
        parts.append(attend_stored_with_lse(query, stored, pattern, alone, backend))
    if sinks is not None:
        parts.append(_of_sinks(query, sinks, parts))
    return merge(parts).output


def _of_sinks(query: Tensor, sinks: Tensor, parts: list[Attended]) -> Attended:
    """Return what the sinks add to queries that see a key."""
    if sinks.shape != (query.shape[1],):
        raise refuse_shapes(
            _CALLER,
            "sinks must hold one number per query head",
            "give a tensor of shape (q_heads,)",
            query=query,
            sinks=sinks,
        )
    lse = torch.stack([part.lse for part in parts]).amax(0)
    closed = lse == float("-inf")
    spread = sinks.to(lse.dtype).view(-1, 1).expand_as(lse)
    zeros = torch.zeros_like(parts[0].output)
    return Attended(zeros, spread.masked_fill(closed, float("-inf")))


def _only_real(output: Tensor, real: RowCounts) -> Tensor:
    """Return zeros for the queries of each row that stand behind its real ones."""
    count = as_tensor(real, output.shape[0]).to(output.device)
    places = torch.arange(output.shape[2], device=output.device)
    padding = places >= count.unsqueeze(1)
    return output.masked_fill(padding[:, None, :, None], 0.0)

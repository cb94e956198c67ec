"""Calls with strides and dilations as calls without: class by class, joined by log-sum-exp.

Whether a call is taken apart, and how, follows from its pattern, its dtype and whether it has more
than a few queries: padding and other samples of the batch leave a row's bits alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.ops.softmax.call import Attended, Call, Computed
from headwise.ops.softmax.merge import joined
from headwise.ops.watchers import is_transformed, is_watched
from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.residues import ResidueClasses, parts

# The kernels have another way for this many queries; classes keep to the way of many.
_FEW = 16


class Part(NamedTuple):
    """A share of the allowed pairs of a call.

    With a ``step`` above 1 it speaks of residue classes: of ``step`` samples in place of each, the
    ``n``-th of which holds every ``step``-th key from the ``n``-th on, and the queries that stand a
    multiple of ``step`` away from these.
    """

    pattern: Pattern | None
    places: tuple[Grid, ...]
    step: int


def split(call: Call) -> list[Part]:
    """Return parts that share no pair and make ``call``; itself where nothing has a step."""
    whole = [Part(call.pattern, call.places, 1)]
    if call.pattern is None or not _is_plain(call) or call.query.shape[2] <= _FEW:
        return whole
    found = parts(call.pattern)
    # Outputs in 16 bits would be rounded once more for every part.
    if not found or (len(found) > 1 and call.query.dtype != torch.float32):
        return whole
    return [_part(part, call) for part in found]


def run(call: Call, attend: Callable[[Call], Computed]) -> Computed:
    """Attend to every part of a call and join what they give."""
    found = split(call)
    if all(part.step == 1 for part in found):
        return attend(call)
    wanting = call._replace(want_lse=call.want_lse or len(found) > 1)
    results = [_attended(part, wanting, attend) for part in found]
    if len(results) == 1:
        return results[0]
    output, lse = joined([Attended(*result) for result in results])  # type: ignore[arg-type]
    return Computed(output, lse if call.want_lse else None)


def _is_plain(call: Call) -> bool:
    """Say whether nothing but query, key, value and pattern makes the weights."""
    others = (call.bias, call.slopes, call.distances, call.sinks)
    if any(other is not None for other in others) or call.dropout_p > 0.0:
        return False
    return not is_transformed() and not is_watched(call.query, call.key, call.value)


def _part(pattern: Pattern, call: Call) -> Part:
    step = pattern.step
    if step == 1:
        return Part(pattern, call.places, 1)
    q_len, kv_len = call.query.shape[2], call.key.shape[2]
    rows = max(-(-(q_len + max(_fronts(call, step))) // step), _FEW + 1)
    places = tuple(
        Grid(rows, -(-kv_len // step), (place.q_offset - place.kv_offset) // step, 0)
        for place in call.places
        for _ in range(step if len(call.places) > 1 else 1)
    )
    return Part(ResidueClasses(pattern, call.places, call.query.shape[0]), places, step)


def _attended(part: Part, call: Call, attend: Callable[[Call], Computed]) -> Computed:
    pattern, places, step = part
    if step == 1:
        return attend(call._replace(pattern=pattern))
    fronts = _fronts(call, step)
    query = _classes(call.query, fronts, step, places[0].q_len)
    key, value = (_classes(heads, [0], step, places[0].kv_len) for heads in (call.key, call.value))
    found = attend(call._replace(query=query, key=key, value=value, pattern=pattern, places=places))
    output, lse = (
        None if rows is None else _in_order(rows, fronts, step, call.query.shape[2])
        for rows in found
    )
    assert output is not None
    return Computed(output, lse)


def _fronts(call: Call, step: int) -> list[int]:
    """Return how many queries are missing before the first, for it to stand in the first class."""
    return [(place.q_offset - place.kv_offset) % step for place in call.places]


def _classes(heads: Tensor, fronts: list[int], step: int, length: int) -> Tensor:
    """Sort tokens by residue class, (batch * step, heads, length, dim), with room in front."""
    batch, count, tokens, dim = heads.shape
    room = step * length
    if len(set(fronts)) == 1:
        front = fronts[0]
        if front or room != tokens:
            heads = pad(heads, (0, 0, front, room - tokens - front))
    else:
        each = zip(heads.unsqueeze(1).unbind(0), fronts, strict=True)
        heads = torch.cat([pad(one, (0, 0, n, room - tokens - n)) for one, n in each])
    apart = heads.reshape(batch, count, length, step, dim).permute(0, 3, 1, 2, 4)
    return apart.reshape(batch * step, count, length, dim)


def _in_order(rows: Tensor, fronts: list[int], step: int, tokens: int) -> Tensor:
    """Put the rows of all classes back where they belong."""
    apart = rows.reshape(len(rows) // step, step, *rows.shape[1:])
    whole = apart.permute(0, 2, 3, 1, *range(4, apart.ndim)).flatten(2, 3)
    if len(set(fronts)) == 1:
        return whole[:, :, fronts[0] : fronts[0] + tokens]
    each = zip(whole.unsqueeze(1).unbind(0), fronts, strict=True)
    return torch.cat([one[:, :, front : front + tokens] for one, front in each])

"""Calls with strides and dilations as calls without: class by class, joined by log-sum-exp."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import pad

from headwise.ops.softmax.call import Attended, Call, Computed
from headwise.ops.softmax.merge import merge
from headwise.ops.softmax.watchers import is_transformed, is_watched
from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.residues import ResidueClasses, parts

# Below so many tokens, and for shorter classes, sorting and joining cost more than they save.
_FEWEST_SORTED = 512
_FEWEST_JOINED = 2048
_SHORTEST_CLASS = 8


class Part(NamedTuple):
    """A share of the allowed pairs of a call.

    With a ``step`` above 1 it speaks of residue classes: of ``step`` samples in place of each, the
    ``n``-th of which holds every ``step``-th token from the ``n``-th on.
    """

    pattern: Pattern | None
    places: tuple[Grid, ...]
    step: int


def split(call: Call) -> list[Part]:
    """Return parts that share no pair and make ``call``; a single one where nothing is gained."""
    whole = [Part(call.pattern, call.places, 1)]
    shorter = min(call.query.shape[2], call.key.shape[2])
    if call.pattern is None or shorter < _FEWEST_SORTED or not _is_plain(call):
        return whole
    found = parts(call.pattern)
    shifts = [place.q_offset - place.kv_offset for place in call.places]
    fits = all(shift >= 0 and shift % part.step == 0 for shift in shifts for part in found)
    largest = max(part.step for part in found)
    fewest = max(_FEWEST_SORTED if len(found) == 1 else _FEWEST_JOINED, largest * _SHORTEST_CLASS)
    if largest == 1 or shorter < fewest or not fits:
        return whole
    return [_part(part, call) if part.step > 1 else Part(part, call.places, 1) for part in found]


def run(call: Call, attend: Callable[[Call], Computed]) -> Computed:
    """Attend to every part of a call and join what they give."""
    found = split(call)
    if len(found) == 1 and found[0].step == 1:
        return attend(call)
    joined = call._replace(want_lse=call.want_lse or len(found) > 1)
    results = [_attended(part, joined, attend) for part in found]
    if len(results) == 1:
        return results[0]
    output, lse = merge([Attended(*result) for result in results])  # type: ignore[arg-type]
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
    q_len, kv_len = (-(-heads.shape[2] // step) for heads in (call.query, call.key))
    places = tuple(
        Grid(q_len, kv_len, (place.q_offset - place.kv_offset) // step, 0)
        for place in call.places
        for _ in range(step if len(call.places) > 1 else 1)
    )
    return Part(ResidueClasses(pattern, call.places, call.query.shape[0]), places, step)


def _attended(part: Part, call: Call, attend: Callable[[Call], Computed]) -> Computed:
    pattern, places, step = part
    if step == 1:
        return attend(call._replace(pattern=pattern))
    query, key, value = (_classes(heads, step) for heads in (call.query, call.key, call.value))
    found = attend(call._replace(query=query, key=key, value=value, pattern=pattern, places=places))
    return Computed(*(None if rows is None else _in_order(rows, step, call) for rows in found))  # type: ignore[arg-type]


def _classes(heads: Tensor, step: int) -> Tensor:
    """Sort tokens by residue class, (batch * step, heads, ceil(length / step), dim)."""
    batch, count, length, dim = heads.shape
    if length % step:
        heads = pad(heads, (0, 0, 0, -length % step))
    apart = heads.reshape(batch, count, -1, step, dim)
    return apart.permute(0, 3, 1, 2, 4).reshape(batch * step, count, -1, dim)


def _in_order(rows: Tensor, step: int, call: Call) -> Tensor:
    """Put the rows of all classes back where they belong."""
    batch, _, length, _ = call.query.shape
    apart = rows.reshape(batch, step, *rows.shape[1:])
    whole = apart.permute(0, 2, 3, 1, *range(4, apart.ndim)).flatten(2, 3)
    return whole[:, :, :length]

"""Where the queries and keys of a call stand."""

from typing import NamedTuple

import torch

from headwise.errors import PatternError
from headwise.patterns.counts import Counts, whole_numbers

Offset = Counts

# Positions beyond would meet those that stand for "no bound".
_FARTHEST = 1 << 56


class Grid(NamedTuple):
    """Sizes of one sample's call and the absolute positions of its first query and first key."""

    q_len: int
    kv_len: int
    q_offset: int
    kv_offset: int


def check_lengths(q_len: int, kv_len: int) -> None:
    """Refuse lengths that no call has."""
    if q_len < 0 or kv_len < 0:
        raise PatternError(
            f"q_len and kv_len must not be negative, got {q_len} and {kv_len}\n"
            "  hint: give the numbers of queries and keys of the call"
        )


def _per_sample(name: str, offset: Offset) -> tuple[int, ...]:
    found = whole_numbers(name, offset)
    if isinstance(found, int):
        return (found,)
    if not found:
        raise PatternError(
            f"{name} must hold a position for every sample, got none\n"
            "  hint: give an int, or one position per sample"
        )
    return found


def _check_reach(*offsets: int) -> None:
    if torch.compiler.is_compiling():
        return
    if any(abs(offset) > _FARTHEST for offset in offsets):
        raise PatternError(
            f"q_offset and kv_offset must lie within ±{_FARTHEST}, got {list(offsets)[:10]}\n"
            "  hint: positions count tokens; only their distances matter to most patterns"
        )


def grids(
    q_len: int,
    kv_len: int,
    q_offset: Offset | None,
    kv_offset: Offset,
    samples: int | None = None,
) -> tuple[Grid, ...]:
    """Settle the offsets of a call: one grid for all samples, or one per sample.

    Where the call has no samples, as ``samples`` may say, offsets per sample are none either.
    """
    if type(kv_offset) is int and (q_offset is None or type(q_offset) is int):
        if kv_offset or q_offset:
            _check_reach(kv_offset, q_offset or 0)
        first = kv_offset + kv_len - q_len if q_offset is None else q_offset
        return (Grid(q_len, kv_len, first, kv_offset),)
    if samples == 0:
        return (Grid(q_len, kv_len, 0, 0),)
    starts = _per_sample("kv_offset:", kv_offset)
    firsts = (
        tuple(start + kv_len - q_len for start in starts)
        if q_offset is None
        else _per_sample("q_offset:", q_offset)
    )
    if len(firsts) > 1 and len(starts) > 1 and len(firsts) != len(starts):
        raise PatternError(
            f"q_offset and kv_offset: must name the same samples, got {len(firsts)} and "
            f"{len(starts)}\n  hint: give one position per sample in both, or an int for all"
        )
    _check_reach(*starts, *firsts)
    count = max(len(firsts), len(starts))
    firsts = firsts * count if len(firsts) == 1 else firsts
    starts = starts * count if len(starts) == 1 else starts
    return tuple(
        Grid(q_len, kv_len, first, start) for first, start in zip(firsts, starts, strict=True)
    )

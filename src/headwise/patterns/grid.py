"""Where the queries and keys of a call stand."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor

from headwise.errors import PatternError

Offset: TypeAlias = int | Tensor | Sequence[int]


class Grid(NamedTuple):
    """Sizes of one sample's call and the absolute positions of its first query and first key."""

    q_len: int
    kv_len: int
    q_offset: int
    kv_offset: int


def as_ints(offset: Offset, name: str) -> tuple[int, ...]:
    """Return the offset as one int, or one per sample."""
    if isinstance(offset, int):
        return (offset,)
    if isinstance(offset, Tensor):
        if offset.is_floating_point() or offset.is_complex() or offset.ndim > 1:
            raise PatternError(
                f"{name}: must be an int or a 1-D integer tensor (batch,), "
                f"got shape {tuple(offset.shape)} {offset.dtype}\n"
                "  hint: give one absolute position per sample"
            )
        offset = offset.reshape(-1).tolist()
    return tuple(int(position) for position in offset)


def grids(q_len: int, kv_len: int, q_offset: Offset | None, kv_offset: Offset) -> tuple[Grid, ...]:
    """Settle the offsets of a call: one grid where all samples agree, else one per sample."""
    if type(kv_offset) is int and (q_offset is None or type(q_offset) is int):
        first = kv_offset + kv_len - q_len if q_offset is None else q_offset
        return (Grid(q_len, kv_len, first, kv_offset),)
    starts = as_ints(kv_offset, "kv_offset")
    firsts = (
        tuple(start + kv_len - q_len for start in starts)
        if q_offset is None
        else as_ints(q_offset, "q_offset")
    )
    if len(firsts) > 1 and len(starts) > 1 and len(firsts) != len(starts):
        raise PatternError(
            f"q_offset and kv_offset: must name the same samples, got {len(firsts)} and "
            f"{len(starts)}\n  hint: give one position per sample in both, or an int for all"
        )
    count = max(len(firsts), len(starts))
    firsts = firsts * count if len(firsts) == 1 else firsts
    starts = starts * count if len(starts) == 1 else starts
    places = tuple(
        Grid(q_len, kv_len, first, start) for first, start in zip(firsts, starts, strict=True)
    )
    return places[:1] if len(set(places)) == 1 else places

"""Where the tokens of a layer's call stand."""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.errors import PatternError
from headwise.patterns.dense import as_mask

Offset = int | Tensor


class Places(NamedTuple):
    """Positions of the first query and of the first new key: for all samples, or one for each.

    ``length`` counts the tokens of the whole sequence, those in a cache included.
    """

    query: Offset
    key: Offset
    length: Offset


def find_places(
    query: Tensor,
    key: Tensor,
    *,
    held: Offset = 0,
    is_self: bool,
    counts_alone: bool = False,
    q_offset: Offset | None,
    kv_offset: Offset = 0,
    kv_mask: Tensor | None = None,
) -> Places:
    """Find where tokens stand for a position scheme.

    In self-attention a token is query and key at the same place. Padding in front of a sample
    (``kv_mask``) is not counted, so that its first real token stands at 0; ``q_offset`` says it
    otherwise. In cross attention the last query stands beside the last key, or, for schemes that
    count alone, the first query at 0.

    Args:
        query: (batch, q_len, …), or of one sample without a batch dimension.
        key: The new keys, (batch, kv_len, …), likewise.
        held: Tokens that the cache holds before it, one number for each row where they differ.
        is_self: Whether queries and new keys are the same tokens.
        counts_alone: Whether it is a token's own place that counts, and not a distance.
        q_offset: Position of the first query, where it was given.
        kv_offset: Position of the first new key where no cache and no padding say otherwise.
        kv_mask: (batch, held + kv_len) or (held + kv_len,), ``True`` = real token.
    """
    q_len, kv_len = query.shape[-2], key.shape[-2]
    end = held + kv_len
    first: Offset = kv_offset
    length: Offset = end
    behind: Offset = 0
    _check_offset(q_offset)
    if kv_mask is not None and longest(end):
        padding = ~as_mask("MultiHeadAttention, kv_mask", kv_mask)
        _check_padding(padding, key, longest(end))
        in_front = padding.cumprod(-1).sum(-1)
        behind = padding.flip(-1).cumprod(-1).sum(-1)
        first = first - in_front
        length = (end - in_front - behind).clamp(min=0)
    if is_self:
        first = first + held if q_offset is None else q_offset
        return Places(first, first, length if q_offset is None else q_offset + kv_len - behind)
    if q_offset is None:
        q_offset = 0 if counts_alone else first + end - q_len
    return Places(q_offset, first, length)


def longest(end: Offset) -> int:
    """Return the tokens of the longest row."""
    return int(end.max()) if isinstance(end, Tensor) else end


def per_sample(offset: Offset, samples: int) -> Offset:
    """Return positions in the form that schemes take: an int, or one for each sample."""
    if not isinstance(offset, Tensor):
        return offset
    return offset.reshape(-1).expand(samples) if offset.numel() == 1 else offset


def _check_offset(q_offset: object) -> None:
    if q_offset is None or isinstance(q_offset, int | Tensor | torch.SymInt):
        return
    raise TypeError(
        "MultiHeadAttention: q_offset must be an int, or a tensor (batch,) of integers, "
        f"got {q_offset!r}\n"
        "  hint: positions count tokens; torch.tensor(…) makes one of a list"
    )


def _check_padding(padding: Tensor, key: Tensor, end: int) -> None:
    samples = key.shape[0] if key.ndim == 3 else 1
    fits = padding.ndim == 1 or (padding.ndim == 2 and padding.shape[0] in (1, samples))
    if not fits or padding.shape[-1] != end:
        raise PatternError(
            f"MultiHeadAttention: kv_mask must be ({samples}, {end}), one for each key, those in "
            f"the cache included, got {tuple(padding.shape)}\n"
            "  hint: a mask over queries and keys is mask="
        )

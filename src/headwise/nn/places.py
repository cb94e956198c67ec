"""Where the tokens of a layer's call stand."""

from typing import NamedTuple

from torch import Tensor

Offset = int | Tensor


class Places(NamedTuple):
    """Positions of the first query and of the first new key: for all samples, or one for each.

    ``length`` counts the tokens of the whole sequence, those in a cache included.
    """

    query: Offset
    key: Offset
    length: Offset


def find_places(
    q_len: int,
    kv_len: int,
    *,
    held: int = 0,
    is_self: bool,
    q_offset: Offset | None,
    kv_offset: Offset = 0,
    kv_mask: Tensor | None = None,
) -> Places:
    """Find where tokens stand for a position scheme.

    In self-attention a token is query and key at the same place. Padding in front of a sample
    (``kv_mask``) is not counted, so that its first real token stands at 0; ``q_offset`` says it
    otherwise.

    Args:
        q_len: Queries of the call.
        kv_len: New keys of the call.
        held: Tokens that the cache holds before it.
        is_self: Whether queries and new keys are the same tokens.
        q_offset: Position of the first query, where it was given.
        kv_offset: Position of the first new key where no cache and no padding say otherwise.
        kv_mask: (batch, held + kv_len) or (held + kv_len,), ``True`` = real token.
    """
    end = held + kv_len
    first: Offset = kv_offset
    length: Offset = end
    if kv_mask is not None and kv_mask.shape[-1]:
        real = kv_mask != 0
        in_front = (~real).cumprod(-1).sum(-1)
        behind = (~real).flip(-1).cumprod(-1).sum(-1)
        first = first - in_front
        length = (end - in_front - behind).clamp(min=0)
    if is_self:
        first = first + held if q_offset is None else q_offset
        return Places(first, first, length if q_offset is None else q_offset + kv_len)
    return Places(first + end - q_len if q_offset is None else q_offset, first, length)


def per_sample(offset: Offset, samples: int) -> Offset:
    """Return positions in the form that schemes take: an int, or one for each sample."""
    if not isinstance(offset, Tensor):
        return offset
    return offset.reshape(-1).expand(samples) if offset.numel() == 1 else offset

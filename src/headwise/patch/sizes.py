"""How sizes broadcast in torch's ``scaled_dot_product_attention``."""

from collections.abc import Sequence
from typing import NamedTuple

from headwise.patch.given import Given

Sizes = tuple[int, ...]


class Spread(NamedTuple):
    """The leading dimensions of the result of a call, and how many heads its keys have.

    ``kv_heads`` is 1 where all query heads read one head, which is then not copied.
    """

    lead: Sizes
    kv_heads: int


def is_plain(given: Given) -> bool:
    """Say at a glance whether ``headwise.attend`` takes query, key and value as they are."""
    query, key, value = given.query.shape, given.key.shape, given.value.shape
    if not len(query) == len(key) == len(value) == 4:
        return False
    batch, q_heads, _, head_dim = query
    key_batch, kv_heads, kv_len, key_dim = key
    value_batch, value_heads, value_len, _ = value
    grouped = q_heads % kv_heads == 0 and (given.enable_gqa or kv_heads in (1, q_heads))
    return (
        batch == key_batch == value_batch
        and kv_heads == value_heads
        and kv_len == value_len
        and head_dim == key_dim
        and grouped
    )


def spread(given: Given) -> Spread | None:
    """Return what the sizes come to; ``None`` where torch or ``headwise`` does not take them."""
    query, key, value = given.query.shape, given.key.shape, given.value.shape
    if len(query) < 2 or len(key) < 2 or len(value) < 2:
        return None
    if query[-1] != key[-1] or key[-2] != value[-2]:
        return None
    if given.enable_gqa:
        return _grouped(query, key, value)
    lead = _broadcast(query[:-2], key[:-2], value[:-2])
    if lead is None:
        return None
    alone = (len(key) < 3 or key[-3] == 1) and (len(value) < 3 or value[-3] == 1)
    return Spread(lead, 1 if alone else lead[-1])


def mask_fits(given: Given) -> bool:
    """Say whether the mask of a call whose sizes fit broadcasts to its scores, as they are."""
    assert given.attn_mask is not None
    mask, query, key = given.attn_mask.shape, given.query.shape, given.key.shape
    if len(query) == len(key):
        heads, others = query[:-2], key[:-2]
    else:
        rank = max(len(query), len(key))
        heads = (1,) * (rank - len(query)) + query[:-2]
        others = (1,) * (rank - len(key)) + key[:-2]
    # Values may have leading dimensions that the scores lack.
    lead = [other if size == 1 else size for size, other in zip(heads, others, strict=True)]
    scores = [*lead, query[-2], key[-2]]
    if not 2 <= len(mask) <= len(scores):
        return False
    rows = zip(mask, scores[len(scores) - len(mask) :], strict=True)
    return all(have in (1, want) for have, want in rows)


def _grouped(query: Sizes, key: Sizes, value: Sizes) -> Spread | None:
    if len(query) < 3 or len(key) < 3 or len(value) < 3:
        return None
    batch = _broadcast(query[:-3], key[:-3], value[:-3])
    q_heads, kv_heads = query[-3], key[-3]
    if batch is None or kv_heads != value[-3] or q_heads % kv_heads:
        return None
    return Spread((*batch, q_heads), kv_heads)


def _broadcast(*shapes: Sequence[int]) -> Sizes | None:
    rank = max(len(shape) for shape in shapes)
    found = [1] * rank
    for shape in shapes:
        for place, size in enumerate(shape, rank - len(shape)):
            if size in (1, found[place]):
                continue
            if found[place] != 1:
                return None
            found[place] = size
    return tuple(found)

"""What the calls of a cache refuse before they look at what is stored."""

import torch
from torch import Tensor

from headwise._checks import is_int
from headwise.errors import CacheError


def check_tokens(
    query: Tensor, key: Tensor | None, value: Tensor | None, *, has_lengths: bool
) -> None:
    """Refuse keys without values, and lengths that could be of queries or of keys."""
    if (key is None) != (value is None):
        raise CacheError(
            "KVCache.attend: key and value must be given together\n"
            "  hint: leave both out to attend to what is stored"
        )
    if has_lengths and key is not None and key.shape[-2] != query.shape[-2]:
        raise CacheError(
            "KVCache.attend: with q_lengths, query must be of the tokens that are appended, "
            f"got {query.shape[-2]} queries and {key.shape[-2]} keys\n"
            "  hint: append first, and attend without key and value"
        )


def check_length(length: int) -> None:
    """Refuse what ``crop`` cannot keep."""
    if not is_int(length) or length < 0:
        raise CacheError(
            f"KVCache.crop: length must be an int of at least 0, got {length!r}\n"
            "  hint: say how many tokens to keep, as in crop(cache.length() - 1)"
        )


def check_index(index: Tensor, batches: set[int]) -> None:
    """Refuse what ``reorder`` cannot take rows from."""
    if index.ndim != 1 or index.is_floating_point() or index.dtype == torch.bool:
        raise CacheError(
            f"KVCache.reorder: index must be 1-D integers, got {tuple(index.shape)} "
            f"{index.dtype}\n  hint: give for each sample the number of its source"
        )
    for batch in batches:
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < batch:
            raise CacheError(
                f"KVCache.reorder: index must name samples 0 to {batch - 1}, "
                f"got {index.tolist()}\n  hint: give for each sample the number of its source"
            )

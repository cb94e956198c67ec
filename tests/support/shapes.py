"""Sizes that are different primes, so that swapped axes cannot pass, and tensors of such sizes."""

from typing import NamedTuple

import torch
from torch import Tensor

QUERY_EDGES = (1, 47, 48, 49, 97)
KEY_EDGES = (1, 127, 128, 129, 257)


class Sizes(NamedTuple):
    """Sizes of one attention call; ``group`` query heads read one key/value head."""

    batch: int = 2
    kv_heads: int = 3
    group: int = 1
    q_len: int = 5
    kv_len: int = 7
    head_dim: int = 11
    value_dim: int = 13

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.kv_heads * self.group


class Inputs(NamedTuple):
    """Query, key and value of one call."""

    query: Tensor
    key: Tensor
    value: Tensor


def inputs(
    sizes: Sizes | None = None,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    spread: float = 1.0,
) -> Inputs:
    """Draw normal query, key and value, ``spread`` times as wide."""
    s = sizes or Sizes()
    source = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return (spread * torch.randn(shape, generator=source, dtype=torch.float64)).to(dtype)

    return Inputs(
        draw(s.batch, s.heads, s.q_len, s.head_dim),
        draw(s.batch, s.kv_heads, s.kv_len, s.head_dim),
        draw(s.batch, s.kv_heads, s.kv_len, s.value_dim),
    )

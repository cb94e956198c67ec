"""The ways to compute a case that are compared: headwise, torch's own, the formula."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headwise as hw
from headwise.cli.bench.cases import Case
from headwise.patterns import Causal


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case, with its mask spelled out for those that need one."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None


def inputs(case: Case, seed: int = 0) -> Inputs:
    """Return the case's tensors: normal numbers, the same in every run."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, case.dtype)

    def numbers(heads: int, length: int) -> Tensor:
        return torch.randn(1, heads, length, case.head_dim, generator=generator).to(dtype)

    query = numbers(case.q_heads, case.q_len)
    key, value = (numbers(case.kv_heads, case.kv_len) for _ in range(2))
    mask = None
    if case.pattern is not None:
        mask = case.pattern.dense(case.q_len, case.kv_len)
        mask = None if bool(mask.all()) else mask
    return Inputs(query, key, value, mask)


def contenders(case: Case, given: Inputs) -> dict[str, Callable[[], Tensor]]:
    """Return what is compared, by name; headwise stands first."""
    query, key, value, mask = given.query, given.key, given.value, given.mask
    grouped = case.q_heads != case.kv_heads
    causal = case.pattern == Causal() and case.q_len == case.kv_len
    sdpa_mask = None if causal else mask

    def through_headwise() -> Tensor:
        return hw.attend(query, key, value, case.pattern)

    def through_sdpa() -> Tensor:
        output: Tensor = scaled_dot_product_attention(
            query, key, value, attn_mask=sdpa_mask, is_causal=causal, enable_gqa=grouped
        )
        return output

    def written_out() -> Tensor:
        return formula(query, key, value, mask)

    return {"headwise": through_headwise, "sdpa": through_sdpa, "formula": written_out}


def taking_turns(calls: Sequence[Callable[[], Tensor]]) -> Callable[[], Tensor]:
    """Return a call that makes one of several after the other, so that none is in the cache."""
    following = cycle(calls)

    def take_next() -> Tensor:
        return next(following)()

    return take_next


def formula(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Compute softmax attention as it stands in the papers, for rows that see something."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    output: Tensor = scores.softmax(-1) @ value
    return output

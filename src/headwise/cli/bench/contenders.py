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

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
# The output; with gradients also those of query, key and value.
Answers = tuple[Tensor, ...]
ANSWERS = ("output", "d_query", "d_key", "d_value")

# The formula holds all scores several times over. Beyond this it is left out.
_ROOM = 2 << 30
_COPIES = {False: 2, True: 5}


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case, with its mask spelled out for those that need one.

    ``d_output`` is the gradient that comes back to the output; ``None`` where none is asked for.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    d_output: Tensor | None


def inputs(case: Case, seed: int = 0) -> Inputs:
    """Return the case's tensors: normal numbers, the same in every run."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, case.dtype)

    def numbers(heads: int, length: int) -> Tensor:
        sizes = (case.batch, heads, length, case.head_dim)
        return torch.randn(sizes, generator=generator).to(dtype)

    query = numbers(case.q_heads, case.q_len)
    key, value = (numbers(case.kv_heads, case.kv_len) for _ in range(2))
    mask = None
    if case.pattern is not None:
        mask = case.pattern.dense(case.q_len, case.kv_len)
        mask = None if bool(mask.all()) else mask
    d_output = numbers(case.q_heads, case.q_len) if case.backward else None
    for tensor in (query, key, value):
        tensor.requires_grad_(case.backward)
    return Inputs(query, key, value, mask, d_output)


def contenders(case: Case, given: Inputs) -> dict[str, Callable[[], Answers]]:
    """Return what is compared, by name; headwise stands first, the formula only where it fits."""
    mask = given.mask
    grouped = case.q_heads != case.kv_heads
    causal = case.pattern == Causal() and case.q_len == case.kv_len
    sdpa_mask = None if causal else mask

    def through_headwise(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return hw.attend(query, key, value, case.pattern)

    def through_sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=sdpa_mask, is_causal=causal, enable_gqa=grouped
        )

    def written_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return formula(query, key, value, mask)

    compared: dict[str, Attention] = {"headwise": through_headwise, "sdpa": through_sdpa}
    if _room_of_formula(case) <= _ROOM:
        compared["formula"] = written_out
    return {name: _call(attention, given) for name, attention in compared.items()}


def answers(attention: Attention, given: Inputs) -> Answers:
    """Return the output and, where ``given`` asks for them, the gradients."""
    output = attention(given.query, given.key, given.value)
    if given.d_output is None:
        return (output,)
    wanted = (given.query, given.key, given.value)
    return (output, *torch.autograd.grad(output, wanted, given.d_output))


def taking_turns(calls: Sequence[Callable[[], Answers]]) -> Callable[[], Answers]:
    """Return a call that makes one of several after the other, so that none is in the cache."""
    following = cycle(calls)

    def take_next() -> Answers:
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


def _call(attention: Attention, given: Inputs) -> Callable[[], Answers]:
    def call() -> Answers:
        return answers(attention, given)

    return call


def _room_of_formula(case: Case) -> int:
    """Return the bytes of the scores and their copies."""
    scores = case.batch * case.q_heads * case.q_len * case.kv_len
    width: int = getattr(torch, case.dtype).itemsize
    return scores * width * _COPIES[case.backward]

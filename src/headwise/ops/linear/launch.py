"""Calls of the compiled sums of linear attention on tensors with data; no autograd."""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.ops.softmax.launch import dense_rows, kernels


class Given(NamedTuple):
    """The tensors of a call.

    Queries read what keys and values write. A derivative changes the roles: for the gradient of a
    key, the queries write and the keys read. So the side with more heads is now the one and now
    the other, a group of them to each head of the state, and the state has the smaller number.

    Attributes:
        query: (batch, readers, q_len, features).
        key: (batch, writers, kv_len, features).
        value: (batch, writers, kv_len, value_dim).
        gain: (batch, writers, kv_len) float32, an exponent of every key; ``None`` = 0.
        offset: (batch, readers, q_len) float32, an exponent of every query; ``None`` = 0.
        log_decay: (kv_heads,) float32, the exponent of a step; ``None`` = 0.
        sums: (batch, kv_heads, features, value_dim) float32, the state; ``None`` = nothing.
        normaliser: (batch, kv_heads, features) float32.
        log_scale: (batch, kv_heads) float32, the exponent that the state is to be multiplied by.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    gain: Tensor | None
    offset: Tensor | None
    log_decay: Tensor | None
    sums: Tensor | None
    normaliser: Tensor | None
    log_scale: Tensor | None

    @property
    def kv_heads(self) -> int:
        """Heads of the state."""
        return min(self.query.shape[1], self.key.shape[1])


class Found(NamedTuple):
    """What a call computes, all of it float32.

    Attributes:
        values: (batch, readers, q_len, value_dim), sums of weights times values.
        total: (batch, readers, q_len), sums of weights.
        sums: (batch, kv_heads, features, value_dim), the state after the last key.
        normaliser: (batch, kv_heads, features).
        log_scale: (batch, kv_heads).
    """

    values: Tensor
    total: Tensor
    sums: Tensor
    normaliser: Tensor
    log_scale: Tensor


def launch(given: Given, causal: bool, backwards: bool) -> Found:
    """Run the kernel. ``backwards``: a causal query sees keys from its own place on."""
    found = sized(given)
    query, key, value = (dense_rows(tensor) for tensor in given[:3])
    rest = (None if tensor is None else tensor.contiguous() for tensor in given[3:])
    kernels().linear_sums(
        query, key, value, *rest, *found, causal, backwards, torch.get_num_threads()
    )
    return found


def sized(given: Given) -> Found:
    """Allocate the results."""
    query, value, heads = given.query, given.value, given.kv_heads
    batch, width = query.shape[0], given.key.shape[3]
    lead = query.shape[:3]
    return Found(
        query.new_empty((*lead, value.shape[3]), dtype=torch.float32),
        query.new_empty(lead, dtype=torch.float32),
        query.new_empty((batch, heads, width, value.shape[3]), dtype=torch.float32),
        query.new_empty((batch, heads, width), dtype=torch.float32),
        query.new_empty((batch, heads), dtype=torch.float32),
    )

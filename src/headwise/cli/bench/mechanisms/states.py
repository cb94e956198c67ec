"""Queries, keys and values that mechanisms are compared on, and cuts of them."""

from typing import NamedTuple

import torch
from torch import Tensor


class Shape(NamedTuple):
    """Heads of a layer, and the width of one."""

    heads: int
    head_dim: int


# That of all-MiniLM-L6-v2.
MINILM_SHAPE = Shape(12, 32)


class States(NamedTuple):
    """Queries, keys and values of one sample, (1, heads, tokens, head_dim) each."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def shape(self) -> Shape:
        """How many heads there are, and how wide."""
        return Shape(self.query.shape[1], self.query.shape[3])

    def first(self, length: int) -> "States":
        """Return the first tokens, packed as if there were no others."""
        return States(*(tensor[:, :, :length].contiguous() for tensor in self))

    def to(self, dtype: torch.dtype) -> "States":
        """Return the same numbers in another dtype."""
        return States(*(tensor.to(dtype) for tensor in self))


class Inputs(NamedTuple):
    """States that want gradients, and the gradient that comes back to the output."""

    query: Tensor
    key: Tensor
    value: Tensor
    d_output: Tensor


def random_states(shape: Shape, length: int, seed: int = 0) -> States:
    """Return normal numbers, the same in every run."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (1, shape.heads, length, shape.head_dim)
    return States(*(torch.randn(sizes, generator=generator) for _ in range(3)))


def wanting_gradients(states: States) -> Inputs:
    """Return copies that want gradients, with a fixed gradient of the output."""
    generator = torch.Generator().manual_seed(1)
    d_output = torch.randn(states.value.shape, generator=generator).to(states.value.dtype)
    query, key, value = (tensor.clone().requires_grad_() for tensor in states)
    return Inputs(query, key, value, d_output)

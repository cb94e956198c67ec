"""K11, B84: what was generated with a cache was simply something else.

x-transformers#219, #311, lag-llama#81, fla#285, transformers#42188: two blocks with self-attention,
rotary positions and cross attention to a memory, fed with the growing prefix and step by step.
"""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.positions import Rotary
from tests.support.budget import largest_error
from tests.support.cached_passes import KINDS, CacheKind

WIDTH, LENGTH = 16, 10
CUTS = {
    "one": list(range(LENGTH + 1)),
    "two": [0, 2, 4, 6, 8, 10],
    "five": [0, 5, 10],
    "nothing in between": [0, 0, 3, 3, 4, 10, 10],
}
NEAR = {torch.float32: 1e-5, torch.float64: 1e-12}


class Layer(nn.Module):
    """Self-attention, then cross attention whose keys and values are written once."""

    def __init__(self) -> None:
        super().__init__()
        self.own = hw.MultiHeadAttention(
            WIDTH, 4, num_kv_heads=2, pattern=hw.Causal(), positions=Rotary(4)
        )
        self.cross = hw.MultiHeadAttention(WIDTH, 4, num_kv_heads=2, kv_dim=12)

    def forward(self, x: Tensor, memory: Tensor, cache: hw.KVCache | None = None) -> Any:
        """Map (batch, length, width) to the same."""
        x = x + self.own(x, cache=cache)
        if cache is None:
            return x + self.cross(x, memory)
        layer = cache.slot(self.cross)
        query, key, value = self.cross.project(x, memory)
        if not cache.length(layer):
            cache.append(key, value, layer=layer)
        context = cache.attend(query, layer=layer)
        return x + self.cross.W_o(self.cross.combine_heads(context))


def run(layers: list[Layer], x: Tensor, memory: Tensor, cache: hw.KVCache | None = None) -> Tensor:
    for layer in layers:
        x = layer(x, memory, cache)
    return x


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("dtype", NEAR, ids=str)
@torch.no_grad()
def test_steps_equal_the_growing_prefix(name: str, cuts: list[int], dtype: torch.dtype) -> None:
    layers = [Layer().to(dtype) for _ in range(2)]
    x, memory = torch.randn(2, LENGTH, WIDTH, dtype=dtype), torch.randn(2, 7, 12, dtype=dtype)
    window = {"window": LENGTH, "kept": LENGTH}.get(name)
    cache = CacheKind(name, LENGTH, window, int(name == "kept")).make()
    for start, end in pairwise(cuts):
        found = run(layers, x[:, start:end], memory, cache)
        wanted = run(layers, x[:, :end], memory)[:, start:]
        assert largest_error(found, wanted.double()) < NEAR[dtype]
    assert [cache.length(layer) for layer in range(4)] == [LENGTH, 7, LENGTH, 7]


@torch.no_grad()
def test_a_block_that_is_given_its_memory_at_every_step() -> None:
    block = hw.nn.TransformerBlock(
        hw.MultiHeadAttention(WIDTH, 4, pattern=hw.Causal(), positions=Rotary(4)),
        hw.nn.FeedForward(WIDTH),
        hw.MultiHeadAttention(WIDTH, 4),
    ).double()
    x, memory = torch.randn(2, 2, LENGTH, WIDTH, dtype=torch.float64)
    cache, whole = hw.KVCache(), block(x, memory)
    for at in range(LENGTH):
        step = block(x[:, at : at + 1], memory, cache=cache)
        assert largest_error(step, whole[:, at : at + 1]) < NEAR[torch.float64]

"""K11, B88: beam search left caches that it did not know in their old order.

transformers#46612, #28357, fairseq2#307: two samples with three beams each, in two layers of
self-attention, one of cross attention, and a state.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.budget import assert_same_bits
from tests.support.cached_passes import KINDS, CacheKind

INDEX = torch.tensor([0, 0, 2, 5, 3, 3])
SELF, CROSS, STATE = (0, 1), 2, 3


def numbered(tokens: int) -> Tensor:
    """Return (6, 2, tokens, 8) whose rows tell which sample they belong to."""
    rows = torch.arange(1.0, 7).view(6, 1, 1, 1)
    return rows + torch.rand(6, 2, tokens, 8) / 4


@pytest.mark.parametrize("dtype", [None, torch.int8], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_every_layer_is_what_index_select_gives(name: str, dtype: torch.dtype | None) -> None:
    window, keep_first = {"window": (4, 0), "kept": (4, 1)}.get(name, (None, 0))
    cache = CacheKind(name, 9, window, keep_first, 2, dtype).make()
    for layer in SELF:
        for tokens, counts in ((3, [3, 1, 2, 3, 3, 2]), (1, [1, 1, 0, 1, 1, 1])):
            lengths = torch.tensor(counts)
            cache.append(numbered(tokens), numbered(tokens), layer=layer, q_lengths=lengths)
    cache.append(numbered(3), numbered(3), layer=CROSS)
    state: Any = {"sum": torch.randn(6, 2, 8), "parts": [torch.randn(6, 3)]}
    cache.set_state(STATE, state)
    before = {layer: [t.clone() for t in cache.stored(layer)] for layer in (*SELF, CROSS)}
    counted = {layer: cache.lengths(layer).clone() for layer in before}
    queries = torch.randn(6, 4, 1, 8)
    seen = {layer: cache.attend(queries, layer=layer) for layer in before}
    cache.reorder(INDEX)
    for layer, stored in before.items():
        assert torch.equal(cache.lengths(layer), counted[layer][INDEX])
        for found, old in zip(cache.stored(layer), stored, strict=True):
            assert_same_bits(found, old[INDEX])
        assert_same_bits(cache.attend(queries[INDEX], layer=layer), seen[layer][INDEX])
    moved: Any = cache.state(STATE)
    assert_same_bits(moved["sum"], state["sum"][INDEX])
    assert_same_bits(moved["parts"][0], state["parts"][0][INDEX])

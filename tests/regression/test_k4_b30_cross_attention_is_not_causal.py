"""B30: cross attention was treated as causal because a default was True."""

import torch

import headwise as hw
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_layers
from tests.support.shapes import Sizes, inputs


@on_all
def test_without_a_pattern_every_query_sees_every_key(path: Path) -> None:
    judged(path, *inputs(Sizes(q_len=3, kv_len=5)))


@on_layers
def test_the_first_query_depends_on_the_last_key(path: Path) -> None:
    layer = hw.MultiHeadAttention(8, 2)
    x, memory = torch.randn(1, 3, 8), torch.randn(1, 5, 8, requires_grad=True)
    with path.taken():
        layer(x, memory)[:, 0].sum().backward()
    assert memory.grad is not None
    assert (memory.grad.abs().sum(-1) > 0).all()


@on_all
def test_a_cache_of_source_tokens_is_not_causal_either(path: Path) -> None:
    query, key, value = inputs(Sizes(q_len=3, kv_len=5))
    with path.taken() as backend:
        cache = hw.KVCache()
        cache.attend(query[:, :, :1], key, value, None, backend=backend)
        found = cache.attend(query, backend=backend)
        torch.testing.assert_close(found, hw.attend(query, key, value, backend=backend))

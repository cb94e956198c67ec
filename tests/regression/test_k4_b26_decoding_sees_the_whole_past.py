"""B26: with cached keys and one query, the new token saw only the first cached key."""

import pytest
import torch

import headwise as hw
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_layers
from tests.support.shapes import Sizes, inputs


@on_all
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 5), (3, 5), (1, 300), (20, 300), (61, 300)])
def test_the_last_rows_of_the_whole_run(path: Path, q_len: int, kv_len: int) -> None:
    query, key, value = inputs(Sizes(2, 2, 2, kv_len, kv_len, 8, 8))
    visible = torch.ones(kv_len, kv_len).tril().bool()
    whole = judged(path, query, key, value, hw.Causal(), visible=visible)
    last = query[:, :, -q_len:]
    part = judged(path, last, key, value, hw.Causal(), visible=visible[-q_len:])
    torch.testing.assert_close(part, whole[:, :, -q_len:])


@on_layers
@pytest.mark.parametrize("chunks", [[1] * 7, [3, 1, 1, 2], [7], [4, 3]])
def test_a_cached_layer_equals_the_whole_run(path: Path, chunks: list[int]) -> None:
    layer = hw.MultiHeadAttention(16, 4, num_kv_heads=2, pattern=hw.Causal()).eval()
    x = torch.randn(2, 7, 16)
    for cache in (hw.KVCache(), hw.KVCache(capacity=7)):
        with path.taken(), torch.no_grad():
            parts = [layer(piece, cache=cache) for piece in torch.split(x, chunks, 1)]
            torch.testing.assert_close(torch.cat(parts, 1), layer(x))
        assert cache.length() == 7


@on_all
def test_an_offset_says_the_same(path: Path) -> None:
    query, key, value = inputs(Sizes(q_len=3, kv_len=5))
    visible = torch.ones(3, 5).tril(2).bool()
    judged(path, query, key, value, hw.Causal(), visible=visible, q_offset=2)
    judged(path, query, key, value, hw.Causal(), visible=visible, q_offset=12, kv_offset=10)
    each = torch.tensor([2, 0])
    rows = torch.stack([visible, torch.ones(3, 5).tril().bool()])[:, None]
    judged(path, query, key, value, hw.Causal(), visible=rows, q_offset=each)
    judged(path, query, key, value, hw.Causal(), visible=rows, q_offset=5, kv_offset=5 - each)

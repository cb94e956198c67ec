"""Caches under ``torch.compile``: the numbers of eager, in one graph where room is plain."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import headwise as hw

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

WHOLE: dict[str, Callable[[], dict[str, Any]]] = {
    "growing": dict,
    "fixed": lambda: {"capacity": 16},
}
IN_PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "window": lambda: {"window": 3},
    "kept": lambda: {"window": 3, "keep_first": 1},
    "paged": lambda: {"pool": hw.PagePool()},
}


@pytest.fixture(autouse=True)
def no_graphs_of_other_tests() -> None:
    torch._dynamo.reset()


def assert_equal_steps(kind: dict[str, Any], twin: dict[str, Any], **options: Any) -> hw.KVCache:
    torch.manual_seed(0)
    layer = hw.MultiHeadAttention(24, 4, num_kv_heads=2, pattern=hw.Causal()).eval()
    compiled = torch.compile(layer, backend="aot_eager", **options)
    cache, eager = hw.KVCache(**kind), hw.KVCache(**twin)
    with torch.no_grad():
        for count in (4, 1, 1, 1, 1):
            x = torch.randn(2, count, 24)
            torch.testing.assert_close(compiled(x, cache=cache), layer(x, cache=eager))
            assert cache.length() == eager.length()
    return cache


@pytest.mark.slow
@pytest.mark.parametrize("kind", WHOLE)
def test_one_graph(kind: str) -> None:
    assert_equal_steps(WHOLE[kind](), WHOLE[kind](), fullgraph=True, dynamic=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", IN_PARTS)
def test_graphs_in_parts(kind: str) -> None:
    cache = assert_equal_steps(IN_PARTS[kind](), IN_PARTS[kind]())
    assert cache.length() == 8
    # What a tracer left behind complains when it dies, and a complaint is an error in the tests.
    del cache
    gc.collect()

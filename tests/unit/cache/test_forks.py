"""Forks and copies go on by themselves; every kind of room is reordered."""

import copy
from collections.abc import Callable

import pytest
import torch

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.cache_tokens import tokens

KINDS = ["growing", "fixed", "window", "paged", "int8"]
kinds = pytest.mark.parametrize("kind", KINDS)


def made(kind: str) -> hw.KVCache:
    kinds: dict[str, Callable[[], hw.KVCache]] = {
        "growing": hw.KVCache,
        "fixed": lambda: hw.KVCache(capacity=40),
        "window": lambda: hw.KVCache(window=4, keep_first=1, rollback=1),
        "paged": lambda: hw.KVCache(pool=hw.PagePool()),
        "int8": lambda: hw.KVCache(dtype=torch.int8),
    }
    return kinds[kind]()


@kinds
@pytest.mark.parametrize("deep", [False, True])
def test_a_fork_and_its_origin_go_on_apart(kind: str, deep: bool) -> None:
    first, second = tokens(13), [tokens(1) for _ in range(8)]
    third = [tokens(1) for _ in range(8)]
    origin, alone, other = made(kind), made(kind), made(kind)
    for cache in (origin, alone, other):
        cache.attend(*first)
    fork = copy.deepcopy(origin) if deep else origin.fork()
    for mine, theirs in zip(second, third, strict=True):
        assert_same_bits(fork.attend(*mine), alone.attend(*mine))
        assert_same_bits(origin.attend(*theirs), other.attend(*theirs))
    assert fork.length() == origin.length() == 21


def test_memory_is_shared_until_it_is_written_to() -> None:
    cache = hw.KVCache()
    cache.append(*tokens(5)[1:])
    fork = cache.fork()
    home = cache.stored().key.data_ptr()
    assert fork.stored().key.data_ptr() == home
    fork.append(*tokens(1)[1:])
    assert fork.stored().key.data_ptr() != home


def test_fixed_room_never_moves_for_a_fork() -> None:
    cache = hw.KVCache(capacity=9)
    cache.append(*tokens(5)[1:])
    home, fork = cache.stored().key.data_ptr(), cache.fork()
    cache.append(*tokens(1)[1:])
    assert cache.stored().key.data_ptr() == home
    assert fork.stored().key.data_ptr() != home


def test_modules_have_the_same_layers_in_a_fork() -> None:
    first, second = (hw.MultiHeadAttention(12, 3, pattern=hw.Causal()) for _ in range(2))
    cache, x = hw.KVCache(), torch.randn(2, 4, 12)
    with torch.no_grad():
        second(first(x, cache=cache), cache=cache)
        fork = cache.fork()
        second(first(x, cache=fork), cache=fork)
    assert [fork.length(layer) for layer in range(3)] == [8, 8, 0]


@kinds
def test_reorder_moves_rows_lengths_and_all(kind: str) -> None:
    index = torch.tensor([1, 1])
    cache, wanted = made(kind), made(kind)
    for count, real in ((3, [3, 1]), (9, [4, 9])):
        q, k, v = tokens(count)
        cache.attend(q, k, v, q_lengths=real)
        wanted.attend(q[index], k[index], v[index], q_lengths=[real[1]] * 2)
    cache.reorder(index)
    assert cache.lengths().tolist() == [10, 10]
    new = tokens(1)
    torch.testing.assert_close(cache.attend(*new), wanted.attend(*new))


@pytest.mark.parametrize("kind", ["growing", "window", "paged", "int8"])
def test_the_batch_may_change(kind: str) -> None:
    cache = made(kind)
    cache.append(*tokens(9)[1:])
    cache.reorder(torch.tensor([1, 0, 1]))
    assert cache.attend(*tokens(1, 3)).shape == (3, 4, 1, 6)
    cache.reset()
    assert cache.lengths().tolist() == []
    assert cache.attend(*tokens(1, 4)).shape == (4, 4, 1, 6)


@kinds
def test_rows_that_are_not_there(kind: str) -> None:
    cache = made(kind)
    cache.append(*tokens(9)[1:])
    before = cache.stored().key.clone()
    for index in ([2], [-1]):
        with pytest.raises(hw.CacheError, match="must name samples 0 to 1"):
            cache.reorder(torch.tensor(index))
    with pytest.raises(hw.CacheError, match="index must be 1-D integers"):
        cache.reorder(torch.tensor([0.0, 1.0]))
    assert_same_bits(cache.stored().key, before)

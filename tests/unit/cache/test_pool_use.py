"""A pool in several threads, after a fork, after a refusal, and without a sample."""

import os
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch

import headwise as hw
from tests.support.cache_tokens import tokens


def test_caches_of_one_growing_pool_in_threads() -> None:
    def filled(number: int, pool: hw.PagePool) -> bool:
        cache = hw.KVCache(pool=pool)
        for step in range(40):
            rows = torch.full((1, 4, 128, 64), float(number * 1000 + step))
            cache.append(rows, rows)
        wanted = torch.arange(40.0).repeat_interleave(128) + number * 1000
        return torch.equal(cache.stored().key, wanted.view(1, 1, -1, 1).expand(1, 4, -1, 64))

    for _ in range(6):
        pool = hw.PagePool()
        with ThreadPoolExecutor(3) as threads:
            assert all(threads.map(filled, range(3), [pool] * 3))
        assert pool.used == 0


def test_a_lock_held_elsewhere_does_not_stop_a_forked_process() -> None:
    pool = hw.PagePool()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(pool.lock.acquire).result()
        child = os.fork()
        if not child:
            os._exit(0 if pool.lock.acquire(timeout=2) else 1)
        assert os.waitpid(child, 0)[1] == 0
        threads.submit(pool.lock.release).result()


def test_a_refused_first_call_does_not_tie_a_pool() -> None:
    pool = hw.PagePool()
    cache = hw.KVCache(pool=pool)
    query, key, value = tokens(3)
    with pytest.raises(hw.ShapeError):
        cache.attend(query[..., :4], key, value)
    other = torch.ones(1, 3, 5, 24)
    cache.append(other, other)
    assert pool.used == 1
    with pytest.raises(hw.CacheError, match="tokens must be like those that the pages hold"):
        hw.KVCache(pool=pool).append(key, value)


def test_no_sample_at_all() -> None:
    none = torch.ones(0, 2, 3, 8)
    cache = hw.KVCache(pool=hw.PagePool())
    assert cache.append(none, none).key.shape == (0, 2, 3, 8)
    assert cache.attend(none, none, none).shape == (0, 2, 3, 8)


def test_a_deep_copy_goes_on_in_the_same_pool() -> None:
    pool = hw.PagePool()
    assert deepcopy([pool])[0] is pool


@pytest.mark.parametrize("kind", [{}, {"window": 64}])
def test_a_fork_that_is_dropped_costs_one_copy_at_most(kind: dict[str, int]) -> None:
    cache = hw.KVCache(**kind)  # type: ignore[arg-type]
    cache.append(*tokens(3)[1:])
    place = cache._layers[0].state[2].tensors[0].data_ptr()
    for _ in range(3):
        cache.fork()
        cache.append(*tokens(1)[1:])
    assert cache._layers[0].state[2].tensors[0].data_ptr() == place


def test_pages_that_were_given_to_others_are_not_read() -> None:
    pool = hw.PagePool(1)
    cache = hw.KVCache(pool=pool)
    stored = cache.append(*tokens(3, 1)[1:])
    cache.reset()
    cache.append(*tokens(3, 1)[1:])
    with pytest.raises(hw.CacheError, match="some of 1 were given to others or written over"):
        _ = stored.key

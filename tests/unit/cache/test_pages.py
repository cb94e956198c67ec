"""Pages: shared, copied before they are written to, counted, given back; a full pool."""

import gc

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.ops import tally
from tests.support import cache_tokens
from tests.support.budget import assert_same_bits
from tests.support.cache_tokens import Tokens


def tokens(count: int, batch: int = 1) -> Tokens:
    return cache_tokens.tokens(count, batch)


def attended(query: Tensor, past: Tokens, new: Tokens) -> Tensor:
    """Attend to tokens and to new ones behind them, without a cache."""
    key, value = (torch.cat([old, more], 2) for old, more in zip(past[1:], new[1:], strict=True))
    return hw.attend(query, key, value, hw.Causal())


@pytest.mark.parametrize("dtype", [None, torch.int8])
@pytest.mark.parametrize("count", [1, 16, 40])
def test_pages_have_the_bits_of_one_room(dtype: torch.dtype | None, count: int) -> None:
    paged, whole = hw.KVCache(pool=hw.PagePool(), dtype=dtype), hw.KVCache(dtype=dtype)
    _, k, v = tokens(300, 3)
    for cache in (paged, whole):
        cache.append(k, v)
    new = tokens(count, 3)
    with tally() as backends:
        found = paged.attend(*new)
    assert backends == {"native": 1}
    assert_same_bits(found, whole.attend(*new))
    assert_same_bits(paged.stored().key, whole.stored().key)


def test_pages_are_shared_until_one_is_written_to() -> None:
    pool = hw.PagePool(9)
    cache = hw.KVCache(pool=pool)
    q, k, v = tokens(300)
    cache.append(k, v)
    twins = [cache.fork() for _ in range(4)]
    assert (pool.used, pool.free) == (3, 6)
    new = [tokens(1) for _ in twins]
    found = [twin.attend(*each) for twin, each in zip(twins, new, strict=True)]
    assert pool.used == 7
    for each, one in zip(new, found, strict=True):
        assert_same_bits(one, attended(each[0], (q, k, v), each))
    assert_same_bits(cache.attend(q[:, :, :2]), hw.attend(q[:, :, :2], k, v))
    del twins
    gc.collect()
    assert pool.used == 3
    cache.crop(200)
    assert pool.used == 2
    assert cache.nbytes == 2 * pool.nbytes // 9
    cache.reset()
    assert pool.used == 0


def test_reordered_rows_share_pages_and_part_again() -> None:
    pool = hw.PagePool()
    cache = hw.KVCache(pool=pool)
    past = tokens(200, 3)
    cache.append(*past[1:])
    index = torch.tensor([2, 2, 0, 2])
    cache.reorder(index)
    assert pool.used == 4
    new = tokens(1, 4)
    found = cache.attend(*new)
    assert pool.used == 6
    moved = cache_tokens.each(lambda rows: rows[index], past)
    assert_same_bits(found, attended(new[0], moved, new))


def test_a_full_pool_refuses_and_loses_nothing() -> None:
    pool = hw.PagePool(3)
    first, second = hw.KVCache(pool=pool), hw.KVCache(pool=pool)
    q, k, v = tokens(200)
    first.append(k, v)
    for _ in range(2):
        with pytest.raises(hw.CacheError) as caught:
            second.attend(q, k, v)
        assert str(caught.value) == (
            "PagePool: all 3 pages are in use but 1, and 2 more are needed\n"
            "  hint: reset or drop caches that are done, or build a larger pool"
        )
        assert (pool.used, pool.free, second.length()) == (2, 1, 0)
    assert_same_bits(first.attend(q), hw.attend(q, k, v))
    first.reset()
    second.attend(q, k, v)


def test_a_failed_call_gives_its_pages_back() -> None:
    pool = hw.PagePool()
    cache = hw.KVCache(pool=pool)
    q, k, v = tokens(200)
    with pytest.raises(ValueError, match="unknown backend"):
        cache.attend(q, k, v, backend="nope")
    assert pool.used == 0
    cache.append(k, v)
    twin = cache.fork()
    with pytest.raises(ValueError, match="unknown backend"):
        twin.attend(q, k, v, backend="nope")
    assert pool.used == 2
    for each in (cache, twin):
        assert_same_bits(each.stored().key, k)


def test_a_growing_pool_keeps_what_it_has() -> None:
    pool = hw.PagePool()
    cache = hw.KVCache(pool=pool)
    parts = [tokens(128 * 7) for _ in range(5)]
    for _, k, v in parts:
        cache.append(k, v)
    assert pool.used == 35
    assert_same_bits(cache.stored().key, torch.cat([k for _, k, _ in parts], 2))


def test_layers_of_other_shapes_are_refused() -> None:
    pool = hw.PagePool()
    cache = hw.KVCache(pool=pool)
    cache.append(*tokens(3)[1:])
    wide = torch.randn(1, 2, 3, 16)
    with pytest.raises(hw.CacheError) as caught:
        cache.append(wide, wide, layer=1)
    assert str(caught.value) == (
        "PagePool: tokens must be like those that the pages hold, 2 heads of 8 and 6 numbers in "
        "torch.float32 on cpu, got 2 heads of 16 and 16 numbers in torch.float32 on cpu\n"
        "  hint: give layers or models of another shape a pool of their own"
    )
    assert (pool.used, cache.length(1)) == (1, 0)


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize("pages", [0, -1, 2.0, True])
def test_pools_of_nonsense(pages: object) -> None:
    with pytest.raises(hw.CacheError, match="pages must be an int of at least 1, or None, got"):
        hw.PagePool(pages)  # type: ignore[arg-type]


@pytest.mark.parametrize("page", [0, 64, 200, True])
def test_pages_of_nonsense(page: int) -> None:
    with pytest.raises(hw.CacheError, match=f"page must be a multiple of 128 tokens, got {page}"):
        hw.PagePool(page=page)


def test_tokens_with_gradients_are_refused() -> None:
    q, k, v = tokens(3)
    cache = hw.KVCache(pool=hw.PagePool())
    with pytest.raises(hw.CacheError, match="pages cannot carry gradients"):
        cache.attend(q, k.requires_grad_(), v)
    assert cache.length() == 0

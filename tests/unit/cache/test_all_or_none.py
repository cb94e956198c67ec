"""Calls over several layers, and over pages, that fail midway: nothing has changed then."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.cache.fixed import FixedStorage
from headwise.cache.growing import GrowingStorage
from headwise.cache.paged import PagedStorage
from headwise.cache.window import WindowStorage
from tests.support.budget import assert_same_bits
from tests.support.cache_tokens import tokens

KINDS: dict[str, tuple[type[Any], Callable[[], dict[str, Any]]]] = {
    "growing": (GrowingStorage, dict),
    "fixed": (FixedStorage, lambda: {"capacity": 9}),
    "window": (WindowStorage, lambda: {"window": 6, "keep_first": 1}),
    "paged": (PagedStorage, lambda: {"pool": hw.PagePool()}),
}
CALLS: dict[str, Callable[[hw.KVCache], None]] = {
    "crop": lambda cache: cache.crop(2, layers=[0, 1, 2]),
    "reorder": lambda cache: cache.reorder(torch.tensor([2, 2, 0])),
    "reset": lambda cache: cache.reset(),
}
METHODS = {"crop": "crop", "reorder": "reorder", "reset": "forget"}


def filled(kind: str) -> hw.KVCache:
    cache = hw.KVCache(**KINDS[kind][1]())
    for layer in range(3):
        cache.append(*tokens(5, 3)[1:], layer=layer, q_lengths=[5, 4, 3])
    cache.set_state(3, torch.arange(3.0), length=5)
    return cache


def contents(cache: hw.KVCache) -> list[torch.Tensor]:
    shown = [rows.clone() for layer in range(3) for rows in cache.stored(layer)]
    for rows in shown:
        rows[1, :, 4:], rows[2, :, 3:] = 0.0, 0.0
    lengths = [cache.lengths(layer) for layer in range(4)]
    return [*shown, *lengths, cache.state(3)]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_midway(
    kind: str, call: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = filled(kind)
    before, calls = contents(cache), []
    real = getattr(KINDS[kind][0], METHODS[call])

    def failing(storage: object, *given: object) -> None:
        calls.append(storage)
        if len(calls) == 2 and not late:
            raise KeyboardInterrupt
        real(storage, *given)
        if len(calls) == 3:
            raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(KINDS[kind][0], METHODS[call], failing)
        with pytest.raises((KeyboardInterrupt, MemoryError)):
            CALLS[call](cache)
    for found, wanted in zip(contents(cache), before, strict=True):
        assert_same_bits(found, wanted)
    CALLS[call](cache)
    twin = filled(kind)
    CALLS[call](twin)
    assert [cache.lengths(n).tolist() for n in range(4)] == [
        twin.lengths(n).tolist() for n in range(4)
    ]


@pytest.mark.parametrize("call", CALLS)
def test_pages_are_neither_lost_nor_given_twice(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = hw.PagePool(12)
    cache = hw.KVCache(pool=pool)
    for layer in range(3):
        cache.append(*tokens(200, 2)[1:], layer=layer)
    before = [cache.stored(layer).key.clone() for layer in range(3)]
    real = getattr(PagedStorage, METHODS[call])
    calls: list[object] = []

    def failing(storage: object, *given: object) -> None:
        real(storage, *given)
        calls.append(storage)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PagedStorage, METHODS[call], failing)
        with pytest.raises(KeyboardInterrupt):
            cache.reorder(torch.tensor([1, 1])) if call == "reorder" else CALLS[call](cache)
    gc.collect()
    assert (pool.used, pool.free) == (12, 0)
    for layer, wanted in enumerate(before):
        assert_same_bits(cache.stored(layer).key, wanted)
    cache.reset()
    assert pool.used == 0
    assert sorted(pool._free) == list(range(12))


class Interrupted(dict[int, int]):
    """Notes of a pool, of which the third is interrupted."""

    def __setitem__(self, number: int, taken: int) -> None:
        if len(self) == 2:
            raise KeyboardInterrupt
        super().__setitem__(number, taken)


def test_pages_that_are_being_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = hw.PagePool(6)
    cache = hw.KVCache(pool=pool)
    monkeypatch.setattr(pool, "_taken_at", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        cache.append(*tokens(400, 1)[1:])
    monkeypatch.undo()
    pool._taken_at = {}
    assert (pool.used, cache.length()) == (0, 0)
    cache.append(*tokens(700, 1)[1:])
    assert pool.used == 6

    def stopped(source: int, target: int) -> None:
        raise KeyboardInterrupt

    cache.crop(600)
    twin = cache.fork()
    kept = cache.stored().key.clone()
    monkeypatch.setattr(pool, "copy", stopped)
    with pytest.raises(KeyboardInterrupt):
        twin.append(*tokens(1, 1)[1:])
    assert (pool.used, twin.length()) == (5, 600)
    for each in (cache, twin):
        assert_same_bits(each.stored().key, kept)


@pytest.mark.parametrize("back", ["crop", "failed call"])
def test_pages_that_were_written_over_are_not_read(back: str) -> None:
    cache = hw.KVCache(pool=hw.PagePool())
    first, more = tokens(3, 1), tokens(4, 1)
    cache.append(*first[1:])
    if back == "crop":
        stored = cache.append(*more[1:])
        cache.crop(3)
    else:
        with pytest.raises(ValueError, match="no"), cache.appended(*more[1:]) as stored:
            raise ValueError("no")
    cache.append(*tokens(4, 1)[1:])
    with pytest.raises(hw.CacheError, match="were given to others or written over since"):
        _ = stored.key
    assert_same_bits(cache.stored().key[:, :, :3], first[1])

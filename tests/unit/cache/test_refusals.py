"""What a cache refuses of nonsense, what cannot be set, pickled or copied by reference."""

import copy
import pickle
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.patterns import lowering
from tests.support.budget import assert_same_bits
from tests.support.cache_tokens import tokens


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    ("call", "given", "said"),
    [
        ("append", (None, None), "key and value must be tensors, got key NoneType, value NoneType"),
        ("append", (torch.ones(1, 2, 3, 4), [1]), "must be tensors, got value list"),
        ("attend", ([1],), "KVCache.attend: query must be tensors, got query list"),
        ("attend", (torch.ones(1, 2, 1, 4), [1], [2]), "got key list, value list"),
        ("length", ("a",), "KVCache.length: layer must be an int of at least 0, got 'a'"),
        ("length", (-1,), "KVCache.length: layer must be an int of at least 0, got -1"),
        ("lengths", (-1,), "KVCache.lengths: layer must be an int of at least 0, got -1"),
        ("state", (-1,), "KVCache.state: layer must be an int of at least 0, got -1"),
    ],
)
def test_nonsense(call: str, given: tuple[Any, ...], said: str) -> None:
    cache = hw.KVCache()
    with pytest.raises(hw.CacheError, match=said):
        getattr(cache, call)(*given)
    assert cache.length() == 0


@pytest.mark.parametrize("name", ["capacity", "window", "dtype", "pool"])
def test_the_kind_cannot_be_set(name: str) -> None:
    cache = hw.KVCache()
    with pytest.raises(AttributeError):
        setattr(cache, name, None)
    assert getattr(cache, name) is None


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("capacity", [None, 9])
def test_a_cache_is_not_pickled(is_used: bool, capacity: int | None) -> None:
    cache = hw.KVCache(capacity=capacity)
    if is_used:
        cache.append(*tokens(3)[1:])
        cache.fork()
    with pytest.raises(TypeError) as refused:
        pickle.dumps({"cache": cache})
    assert str(refused.value) == (
        "KVCache: cannot be pickled, for its layers belong to modules of this process\n"
        "  hint: copy.deepcopy copies it within the process, save() writes it to a file"
    )


def test_a_copy_goes_its_own_way() -> None:
    cache = hw.KVCache()
    cache.append(*tokens(3)[1:])
    twin = copy.copy(cache)
    twin.append(*tokens(2)[1:])
    cache.set_state(1, torch.ones(2))
    assert (cache.length(), twin.length(), twin.state(1)) == (3, 5, None)


def test_fixed_room_takes_another_batch_after_a_reset() -> None:
    cache = hw.KVCache(capacity=9)
    cache.append(*tokens(3, 2)[1:])
    with pytest.raises(hw.CacheError, match=r"reset\(\) starts anew"):
        cache.append(*tokens(3, 4)[1:])
    room = cache.stored().key.data_ptr()
    cache.reset()
    assert (cache.length(), cache.lengths().tolist()) == (0, [])
    cache.reorder(torch.tensor([0]))
    assert cache.append(*tokens(3, 2)[1:]).key.data_ptr() == room
    cache.reset()
    new = tokens(3, 4)
    assert_same_bits(cache.attend(*new), hw.attend(*new, hw.Causal()))
    assert cache.nbytes == 9 * 4 * 2 * (8 + 6) * 4


@pytest.mark.parametrize("kind", [{}, {"window": 8}, {"window": 8, "keep_first": 2}])
def test_steps_leave_no_layouts_behind(kind: dict[str, Any]) -> None:
    cache = hw.KVCache(**kind)
    lowering.kept.clear()
    lowering.kept_few.clear()
    given = tokens(1)
    for _ in range(1200):
        cache.attend(*given)
    assert lowering.kept.nbytes == 0
    assert lowering.kept_few.nbytes <= 1 << 20

"""Rows of beams with one memory are not copied at every step; rows that differ always are."""

import pytest
import torch
from torch import Tensor

import headwise as hw

BEAMS = torch.tensor([1, 1, 0, 4, 3])  # beams 0 to 2 are of one source, 3 and 4 of another


def memory(dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 2, 7, 5, dtype=dtype).repeat_interleave(torch.tensor([3, 2]), 0)


def held(cache: hw.KVCache) -> tuple[Tensor, Tensor]:
    stored = cache.stored()
    return stored.key.clone(), stored.value.clone()


@pytest.fixture(params=[{}, {"window": 5}, {"dtype": torch.int8}, {"capacity": 9}], ids=str)
def cache(request: pytest.FixtureRequest) -> hw.KVCache:
    found = hw.KVCache(**request.param)
    found.append(memory(), memory() + 1)
    return found


def test_a_memory_that_beams_share_stays_where_it_is() -> None:
    cache = hw.KVCache()
    cache.append(memory(), memory() + 1)
    before = held(cache)
    cache.reorder(BEAMS)
    place = cache.stored().key.data_ptr()
    cache.reorder(BEAMS)
    cache.reorder(BEAMS)
    assert cache.stored().key.data_ptr() == place
    assert all(map(torch.equal, held(cache), before))


def test_rows_that_differ_are_picked_whatever_came_before(cache: hw.KVCache) -> None:
    across = torch.tensor([0, 3, 3, 1, 0])
    for index in (BEAMS, BEAMS, across, across, BEAMS, across.flip(0)):
        key, value = held(cache)
        cache.reorder(index)
        assert all(map(torch.equal, held(cache), (key[index], value[index])))


def test_rows_that_were_written_to_are_compared_anew(cache: hw.KVCache) -> None:
    cache.reorder(BEAMS)
    cache.reorder(BEAMS)
    more = torch.randn(5, 2, 1, 5)
    for change in (lambda: cache.append(more, more), lambda: cache.crop(6)):
        change()
        for _ in range(2):
            key, value = held(cache)
            cache.reorder(BEAMS)
            assert all(map(torch.equal, held(cache), (key[BEAMS], value[BEAMS])))


@pytest.mark.parametrize("rows", [[0, 1], [0, 0, 1, 1, 2], [2]])
def test_more_and_fewer_rows(rows: list[int]) -> None:
    cache = hw.KVCache()
    cache.append(memory()[:3], memory()[:3])
    cache.reorder(torch.tensor([0, 1, 2]))
    cache.reorder(torch.tensor(rows))
    assert torch.equal(cache.stored().key, memory()[:3][rows])


@pytest.mark.parametrize("differs", [float("nan"), -0.0])
def test_rows_alike_have_the_same_bits(differs: float) -> None:
    key = torch.zeros(2, 1, 3, 4)
    key[1, 0, 2, 3] = differs
    cache = hw.KVCache()
    cache.append(key, torch.zeros(2, 1, 3, 4))
    swap = torch.tensor([1, 0])
    for _ in range(3):
        cache.reorder(swap)
        key = key[swap]
        assert torch.equal(cache.stored().key.view(torch.int32), key.view(torch.int32))


def test_inside_inference_and_outside() -> None:
    cache = hw.KVCache()
    with torch.inference_mode():
        cache.append(memory(), memory())
        cache.reorder(BEAMS)
        cache.reorder(BEAMS)
    more = torch.ones(5, 2, 1, 5)
    cache.append(more, more)
    cache.reorder(torch.tensor([4, 3, 2, 1, 0]))
    assert torch.equal(cache.stored().key, torch.cat([memory(), more], 2).flip(0))


def test_a_fork_goes_its_own_way() -> None:
    cache = hw.KVCache()
    cache.append(memory(), memory())
    cache.reorder(BEAMS)
    twin = cache.fork()
    twin.reorder(BEAMS)
    more = torch.randn(5, 2, 1, 5)
    twin.append(more, more)
    twin.reorder(BEAMS)
    assert torch.equal(twin.stored().key, torch.cat([memory(), more[BEAMS]], 2))
    assert torch.equal(cache.stored().key, memory())

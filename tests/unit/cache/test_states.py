"""States of mechanisms beside keys and values."""

from typing import NamedTuple

import pytest
import torch

import headwise as hw
from headwise.cache.states import tensors_of
from tests.support.budget import assert_same_bits


class Pair(NamedTuple):
    total: torch.Tensor
    many: torch.Tensor


def test_a_state_is_kept_reordered_forked_and_forgotten() -> None:
    cache = hw.KVCache()
    assert cache.state(3) is None
    state = {"sums": Pair(torch.randn(3, 2), torch.randn(3)), "more": [torch.randn(3, 1), None]}
    cache.set_state(3, state, length=7)
    assert (cache.length(3), cache.lengths(3).tolist()) == (7, [7, 7, 7])
    assert cache.nbytes == (6 + 3 + 3) * 4
    fork = cache.fork()
    cache.reorder(torch.tensor([2, 2]))
    moved = cache.state(3)
    assert isinstance(moved["sums"], Pair)
    for found, old in zip(tensors_of(moved), tensors_of(state), strict=True):
        assert_same_bits(found, old[[2, 2]])
    for found, old in zip(tensors_of(fork.state(3)), tensors_of(state), strict=True):
        assert_same_bits(found, old)
        assert found.data_ptr() != old.data_ptr()
    cache.set_state(3, None)
    fork.reset()
    assert cache.state(3) is None
    assert fork.state(3) is None


def test_a_state_cannot_go_back() -> None:
    cache = hw.KVCache()
    cache.append(torch.randn(2, 1, 9, 4), torch.randn(2, 1, 9, 4))
    cache.set_state(1, torch.randn(2, 3), length=9)
    with pytest.raises(hw.CacheError) as caught:
        cache.crop(8)
    assert str(caught.value) == (
        "KVCache.crop: layer 1 keeps a state, which cannot go back to 8 tokens\n"
        "  hint: fork() before the tokens that may be taken back"
    )
    assert cache.length() == 9
    cache.crop(9)
    cache.set_state(1, torch.randn(2, 3))
    with pytest.raises(hw.CacheError, match="layer 1 keeps a state"):
        cache.crop(9)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (3, "must be made of tensors, None, tuples, lists and dictionaries with names, got int"),
        ([torch.ones(2), torch.ones(3)], r"all the same, got \[\(2,\), \(3,\)\]"),
        (torch.tensor(1.0), r"all the same, got \[\(\)\]"),
        ((), r"all the same, got \[\]"),
        (torch.ones(3), "layer 0 holds 2 samples, and the state is of 3"),
    ],
)
def test_states_of_nonsense(state: object, said: str) -> None:
    cache = hw.KVCache()
    cache.append(torch.randn(2, 1, 9, 4), torch.randn(2, 1, 9, 4))
    with pytest.raises(hw.CacheError, match=said):
        cache.set_state(0, state)
    assert cache.state() is None


def test_lengths_of_nonsense() -> None:
    with pytest.raises(hw.CacheError, match="length must be an int of at least 0, got -1"):
        hw.KVCache().set_state(0, torch.ones(2), length=-1)


def test_rows_of_states_are_checked_before_anything_moves() -> None:
    cache = hw.KVCache()
    cache.set_state(0, torch.ones(2))
    with pytest.raises(hw.CacheError, match="must name samples 0 to 1"):
        cache.reorder(torch.tensor([2]))

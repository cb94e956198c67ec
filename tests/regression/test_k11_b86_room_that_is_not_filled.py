"""K11, B86: the slots of a static cache that hold nothing yet were attended to.

transformers#30400, #30417, #30437, #30414: the mask that hid them was dropped.
"""

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits


def tokens(count: int) -> tuple[Tensor, Tensor, Tensor]:
    query = torch.randn(2, 4, count, 8)
    key, value = torch.randn(2, 2, 2, count, 8)
    return query, key, value


def with_nan(cache: hw.KVCache, capacity: int) -> None:
    """Fill the room behind the tokens with NaN, as memory that nobody has written may hold it."""
    for held in cache.stored():
        room = held.as_strided((*held.shape[:2], capacity, held.shape[3]), held.stride())
        room[:, :, cache.length() :] = torch.nan


@pytest.mark.parametrize("pattern", [hw.Causal(), hw.Causal() & hw.Window(1, 0), None], ids=str)
def test_prefill_and_steps_equal_a_cache_that_grows(pattern: hw.patterns.Pattern | None) -> None:
    fixed, growing = hw.KVCache(capacity=8), hw.KVCache()
    for new in (3, 1, 2, 2):
        given = tokens(new)
        found = fixed.attend(*given, pattern)
        assert found.isfinite().all()
        assert_same_bits(found, growing.attend(*given, pattern))
        with_nan(fixed, 8)


def test_rows_that_hold_less_than_the_longest() -> None:
    fixed = hw.KVCache(capacity=8)
    first, then = tokens(4), tokens(1)
    counts = torch.tensor([4, 1])
    key, value = (tensor.clone() for tensor in first[1:])
    key[1, :, 1:], value[1, :, 1:] = torch.nan, torch.nan
    fixed.append(key, value, q_lengths=counts)
    found = fixed.attend(*then)
    for row, count in enumerate(counts.tolist()):
        alone = hw.KVCache()
        alone.append(*(tensor[row : row + 1, :, :count] for tensor in first[1:]))
        wanted = alone.attend(
            then[0][row : row + 1], then[1][row : row + 1], then[2][row : row + 1]
        )
        assert_same_bits(found[row : row + 1], wanted)


def test_what_was_given_back_is_not_seen() -> None:
    fixed = hw.KVCache(capacity=8)
    query, key, value = tokens(3)
    fixed.append(key, value)
    fixed.append(*(torch.full_like(tensor, torch.nan) for tensor in (key, value)))
    fixed.crop(3)
    assert_same_bits(fixed.attend(query), hw.attend(query, key, value))

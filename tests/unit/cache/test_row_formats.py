"""Rows in other dtypes and in 8 bits: what is stored, its bytes, what is attended to."""

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.ops import tally
from tests.support.budget import assert_same_bits, assert_within_budget, largest_error


def tokens(count: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    parts = torch.randn(2, 4, count, 64), torch.randn(2, 2, count, 64), torch.randn(2, 2, count, 48)
    q, k, v = (part.to(dtype) for part in parts)
    return q, k, v


def test_eight_bits_keep_each_row_to_half_a_step() -> None:
    cache = hw.KVCache(dtype=torch.int8)
    _, k, v = tokens(9)
    k[0, 0, 3] *= 1e4
    stored = cache.append(k, v)
    for rows, found in ((k, stored.key), (v, stored.value)):
        step = rows.abs().amax(-1, keepdim=True) / 127
        assert bool(((rows - found).abs() <= step * 0.5001).all())


def test_eight_bits_take_a_quarter_of_the_bytes() -> None:
    wide, narrow = hw.KVCache(), hw.KVCache(dtype=torch.int8)
    for cache in (wide, narrow):
        key = torch.randn(1, 3, 100, 64)
        cache.append(key, key)
    assert narrow.nbytes <= 0.27 * wide.nbytes


def test_rows_of_zeros_and_rows_that_are_not_finite() -> None:
    cache = hw.KVCache(dtype=torch.int8)
    rows = torch.randn(1, 1, 4, 8)
    rows[0, 0, 1], rows[0, 0, 2, 0], rows[0, 0, 3, 0] = 0.0, float("nan"), float("inf")
    key = cache.append(rows, rows).key
    assert not key[0, 0, 1].any()
    assert bool(key[0, 0, 2:].isnan().all())
    assert bool(key[0, 0, 0].isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 16, 17])
def test_eight_bits_are_attended_to_as_what_they_stand_for(dtype: torch.dtype, count: int) -> None:
    cache = hw.KVCache(dtype=torch.int8)
    cache.append(*tokens(150, dtype)[1:])
    q, k, v = tokens(count, dtype)
    with tally() as backends:
        found = cache.attend(q, k, v)
    assert found.dtype == dtype
    assert backends == {"native": 1}
    stored = cache.stored()
    exact = cache.attend(q.double(), pattern=hw.Causal(), backend="reference")
    plain = hw.attend(q, stored.key, stored.value, hw.Causal(), backend="reference")
    assert_within_budget(found, exact=exact, plain=plain, label=f"{dtype} {count}")


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_the_wider_dtype_is_computed_in(stored: torch.dtype, given: torch.dtype) -> None:
    cache = hw.KVCache(dtype=stored)
    q, k, v = tokens(20, given)
    found = cache.attend(q, k, v)
    assert cache.stored().key.dtype == stored
    work = torch.promote_types(stored, given)
    rounded = k.to(stored).to(work), v.to(stored).to(work)
    wanted = hw.attend(q.to(work), rounded[0], rounded[1], hw.Causal())
    assert_same_bits(found, wanted.to(given))


def test_a_gradient_of_the_query_flows_and_those_of_tokens_are_refused() -> None:
    cache = hw.KVCache(dtype=torch.int8)
    q, k, v = tokens(5)
    with pytest.raises(hw.CacheError, match="rows of 8 bits cannot carry gradients"):
        cache.attend(q, k.requires_grad_(), v)
    assert cache.length() == 0
    cache.append(k.detach(), v)
    q.requires_grad_()
    (found,) = torch.autograd.grad(cache.attend(q).sum(), q)
    (wanted,) = torch.autograd.grad(hw.attend(q, cache.stored().key, cache.stored().value).sum(), q)
    assert largest_error(found, wanted.double()) < 1e-6


@pytest.mark.parametrize("backend", ["native", "reference", "sdpa"])
def test_a_named_backend_runs(backend: str) -> None:
    cache = hw.KVCache(dtype=torch.int8)
    q, k, v = tokens(5)
    with tally() as backends:
        found = cache.attend(q, k, v, backend=backend)
    assert backends == {backend: 1}
    assert (
        largest_error(
            found, hw.attend(q, cache.stored().key, cache.stored().value, hw.Causal()).double()
        )
        < 1e-6
    )


def test_autocast_is_followed() -> None:
    cache, other = hw.KVCache(dtype=torch.int8), hw.KVCache(dtype=torch.int8)
    q, k, v = tokens(5)
    with torch.autocast("cpu", torch.bfloat16):
        found = cache.attend(q, k, v)
    wanted = other.attend(q, k, v)
    assert largest_error(found, wanted.double()) < 0.05


def test_other_tokens_are_refused() -> None:
    cache = hw.KVCache(dtype=torch.int8)
    _, k, v = tokens(5)
    cache.append(k, v)
    with pytest.raises(hw.CacheError, match="must continue what is stored"):
        cache.append(k.double(), v.double())
    assert cache.length() == 5

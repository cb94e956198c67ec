"""Kernels that multiply a masked score by the scale must not make an ordinary number of it."""

import pytest
import torch

import headwise as hw
from tests.support.budget import assert_within_budget

SCALES = [0.0, 1e-30, 1e-36, 9e-37, 1e-38, 1e-40, -1e-38]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("q_len", [1, 41])
def test_masked_keys_stay_out(scale: float, q_len: int) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 67, 16)
    query, near = query[:, :, -q_len:], hw.Window(2, 0)
    found = hw.attend(query, key, value, near, scale=scale)
    q, k, v = query.double(), key.double(), value.double()
    exact = hw.attend(q, k, v, near, scale=scale, backend="reference")
    plain = hw.attend(query, key, value, near, scale=scale, backend="reference")
    assert_within_budget(found, exact=exact, plain=plain, label=str(scale))


@pytest.mark.parametrize("dtype", [None, torch.int8])
def test_masked_keys_of_a_cache_stay_out(dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    cache = hw.KVCache(dtype=dtype)
    key = torch.randn(1, 2, 40, 16)
    cache.append(key, torch.cat([torch.full_like(key[:, :, :30], 50.0), key[:, :, 30:]], 2))
    found = cache.attend(torch.randn(1, 2, 1, 16), None, None, hw.Window(5, 0), scale=1e-38)
    assert found.abs().max() < 5


def test_the_kernels_refuse_them() -> None:
    query = torch.ones(1, 1, 3, 8)
    wanted = "with a pattern, its scales are 0 or at least 1e-36, and this is 1e-38"
    with pytest.raises(hw.BackendRefused, match=wanted):
        hw.attend(query, query, query, hw.Causal(), scale=1e-38, backend="native")

"""What a cache of 8 bits or pages hands out is a tensor to everybody."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import headwise as hw
from headwise import hf
from headwise.errors import CacheError
from headwise.hf.attention import attention
from headwise.hf.cached_tensor import CachedTensor
from tests.support.budget import assert_same_bits


def _pair(steps: int = 2) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Return keys, values, the plain keys they stand for, and the cache that holds them."""
    torch.manual_seed(5)
    cache = hf.Cache(dtype=torch.int8)
    for _ in range(steps):
        key, value = cache.update(*torch.randn(2, 2, 3, 4, 8), 0)
    return key, value, cache.store.stored(0).key.clone(), cache


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "amax": torch.amax,
    "slice": lambda key: key[:, :, -2:],
    "add": lambda key: key + 1,
    "add to": lambda key: torch.ones_like(key).add_(key),
    "matmul": lambda key: torch.ones(5, 8) @ key.transpose(2, 3),
    "cat": lambda key: torch.cat([key, key], 2),
    "stack": lambda key: torch.stack([key, torch.zeros(key.shape)]),
    "expand": lambda key: key[:, :, None].expand(2, 3, 2, 8, 8).reshape(2, 6, 8, 8),
    "to": lambda key: key.to(torch.float64),
    "clone": torch.clone,
    "detach": lambda key: key.detach(),
    "sdpa": lambda key: functional.scaled_dot_product_attention(torch.ones(2, 3, 1, 8), key, key),
    "attend": lambda key: hw.attend(torch.ones(2, 3, 1, 8), key, key, backend="reference"),
    "numpy": lambda key: torch.from_numpy(key.numpy()),
    "list": lambda key: torch.tensor(key.tolist()),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_torch_see_a_tensor(name: str, guard: Callable[[], Any]) -> None:
    operation = OPERATIONS[name]
    with guard():
        key, _, plain, _ = _pair()
        assert isinstance(key, CachedTensor)
        found = operation(key)
        assert not isinstance(found, CachedTensor)
        assert_same_bits(found, operation(plain), name)


def test_it_is_saved_and_loaded_as_a_tensor() -> None:
    key, value, plain, _ = _pair()
    file = io.BytesIO()
    torch.save({"key": key, "value": value}, file)
    file.seek(0)
    assert_same_bits(torch.load(file)["key"], plain)


def test_it_says_what_it_is_without_being_made() -> None:
    key, value, plain, _ = _pair()
    assert (key.shape, key.dtype, key.device) == (plain.shape, plain.dtype, plain.device)
    assert (key.ndim, value.numel(), key.requires_grad) == (4, plain.numel(), False)
    assert repr(key) == "CachedTensor(keys, (2, 3, 8, 8), torch.float32)"


WRITES: dict[str, Callable[[Tensor], object]] = {
    "zero_": lambda key: key.zero_(),
    "copy_": lambda key: key.copy_(torch.zeros(key.shape)),
    "out": lambda key: torch.add(torch.ones(key.shape), 1, out=key),
    "many": lambda key: torch._foreach_zero_([key]),
}


@pytest.mark.parametrize("name", WRITES)
def test_writing_to_it_is_refused(name: str) -> None:
    key, _, plain, cache = _pair()
    with pytest.raises(CacheError, match=r"cannot write to a CachedTensor[\s\S]*tensor\.clone\(\)"):
        WRITES[name](key)
    assert_same_bits(cache.store.stored(0).key, plain)


@pytest.mark.parametrize("change", ["update", "crop", "reorder", "reset"])
def test_it_is_refused_when_the_cache_has_moved_on(change: str) -> None:
    key, _, _, cache = _pair()
    {
        "update": lambda: (cache.update(*torch.randn(2, 2, 3, 1, 8), 0), cache.get_seq_length()),
        "crop": lambda: cache.crop(-1),
        "reorder": lambda: cache.reorder_cache(torch.tensor([1, 0])),
        "reset": cache.reset,
    }[change]()
    with pytest.raises(CacheError, match="layer 0 has changed since these keys and values"):
        key.sum()


def test_what_was_read_stays_as_it_was_read() -> None:
    key, _, plain, cache = _pair()
    assert_same_bits(key + 0, plain)
    cache.update(*torch.randn(2, 2, 3, 1, 8), 0)
    assert_same_bits(key + 0, plain)


def test_tokens_are_stored_though_nobody_reads_them() -> None:
    _, _, _, cache = _pair(steps=3)
    assert cache.get_seq_length() == 12
    assert cache.layers[0].keys.shape == (2, 3, 12, 8)


def test_keys_and_values_of_different_steps_are_not_taken_for_a_pair() -> None:
    query = torch.randn(2, 3, 1, 8)
    key, _, plain, cache = _pair()
    key.sum()
    cache.crop(-1)
    cache.update(*torch.randn(2, 2, 3, 1, 8), 0)
    values = cache.layers[0].values
    module = torch.nn.Module()
    found, _ = attention(module, query, key, values, is_causal=False)
    expected = hw.attend(query, plain, cache.store.stored(0).value)
    assert_same_bits(found.transpose(1, 2).contiguous(), expected)


def test_a_call_that_fails_stores_nothing_and_cannot_be_repeated() -> None:
    _, _, plain, cache = _pair()
    key, value = cache.update(*torch.randn(2, 2, 3, 1, 8), 0)
    module = torch.nn.Module()
    with pytest.raises(hw.ShapeError, match="kv_heads must divide q_heads"):
        attention(module, torch.randn(2, 4, 1, 8), key, value, is_causal=False)
    assert cache.get_seq_length() == 8
    assert_same_bits(cache.store.stored(0).key, plain)
    with pytest.raises(CacheError, match="layer 0 has changed since"):
        attention(module, torch.randn(2, 3, 1, 8), key, value, is_causal=False)

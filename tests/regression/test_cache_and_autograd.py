"""What a cache does to gradients, to copies, and after a call that failed."""

import copy

import pytest
import torch

import headwise as hw


def test_keys_without_gradient_kept_for_a_query_that_has_one() -> None:
    layer = hw.MultiHeadAttention(12, 3, pattern=hw.Causal())
    layer.W_k.requires_grad_(False)
    layer.W_v.requires_grad_(False)
    x = torch.randn(1, 4, 12)
    cache = hw.KVCache()
    steps = torch.cat([layer(x[:, i : i + 1], cache=cache) for i in range(4)], 1)
    (found,) = torch.autograd.grad(steps.square().sum(), layer.W_q.weight)
    (wanted,) = torch.autograd.grad(layer(x).square().sum(), layer.W_q.weight)
    torch.testing.assert_close(found, wanted)


def test_failed_call_without_gradients_keeps_those_stored() -> None:
    key = torch.randn(1, 2, 3, 8, requires_grad=True)
    cache = hw.KVCache()
    cache.append(key, key)
    with torch.no_grad(), pytest.raises(ValueError, match="unknown backend"):
        cache.attend(key, key, key, backend="nope")
    assert cache.length() == 3
    assert cache.stored().key.requires_grad


def test_reordered_in_inference_mode_and_written_outside() -> None:
    cache = hw.KVCache()
    key = torch.randn(2, 2, 3, 8)
    with torch.inference_mode():
        cache.append(key, key)
        cache.reorder(torch.tensor([1, 1], dtype=torch.int16))
    with torch.no_grad():
        cache.append(key, key)
    assert torch.equal(cache.stored().key, torch.cat([key[[1, 1]], key], 2))


def test_model_copied_with_its_cache_goes_on() -> None:
    layer = hw.MultiHeadAttention(12, 3, pattern=hw.Causal())
    cache = hw.KVCache()
    x = torch.randn(1, 4, 12)
    with torch.no_grad():
        layer(x[:, :3], cache=cache)
        other, its_cache = copy.deepcopy((layer, cache))
        wanted = layer(x[:, 3:], cache=cache)
        assert torch.equal(other(x[:, 3:], cache=its_cache), wanted)
    assert its_cache.length() == 4


@pytest.mark.parametrize("wrong", [2.0, True, "3", -1])
def test_lengths_that_are_no_counts(wrong: object) -> None:
    cache = hw.KVCache()
    with pytest.raises(hw.CacheError):
        cache.crop(wrong)  # type: ignore[arg-type]
    with pytest.raises(hw.CacheError):
        hw.KVCache(capacity=wrong)  # type: ignore[arg-type]


def test_modules_keep_their_layers_after_a_reset() -> None:
    first, second = hw.MultiHeadAttention(12, 3), hw.MultiHeadAttention(12, 3)
    cache = hw.KVCache()
    x = torch.randn(1, 2, 12)
    first(x, cache=cache)
    cache.reset()
    with pytest.raises(hw.CacheError, match="layer 0 belongs to another module"):
        second(x, cache=cache, layer=0)
    first(x, cache=cache)
    assert cache.length() == 2

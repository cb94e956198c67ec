"""KVCache: lengths, room, failures that leave no trace."""

import pytest
import torch
from torch import Tensor

import headwise as hw

CAPACITIES = [None, 64]


def tokens(count: int, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Return query (4 heads), key and value (2 heads) of so many tokens."""
    return (
        torch.randn(batch, 4, count, 8),
        torch.randn(batch, 2, count, 8),
        torch.randn(batch, 2, count, 6),
    )


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_steps_equal_the_whole(capacity: int | None) -> None:
    q, k, v = tokens(17)
    cache = hw.KVCache(capacity=capacity)
    found = []
    for start, end in ((0, 5), (5, 5), (5, 6), (6, 17)):
        part = slice(start, end)
        found.append(cache.attend(q[:, :, part], k[:, :, part], v[:, :, part]))
        assert cache.length() == end
    torch.testing.assert_close(torch.cat(found, 2), hw.attend(q, k, v, hw.Causal()))


def test_growing_room_doubles_and_fixed_room_never_moves() -> None:
    cache = hw.KVCache()
    rooms = set()
    for _ in range(300):
        _, k, v = tokens(1)
        cache.append(k, v)
        rooms.add(cache.stored().key.untyped_storage().data_ptr())
    assert len(rooms) <= 5
    fixed = hw.KVCache(capacity=300)
    for _ in range(300):
        _, k, v = tokens(1)
        first = fixed.append(k, v)
    assert fixed.nbytes == 300 * 2 * 2 * (8 + 6) * 4
    home = first.key.data_ptr()
    fixed.reset()
    assert fixed.append(*tokens(2)[1:]).key.data_ptr() == home


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_crop(capacity: int | None) -> None:
    cache = hw.KVCache(capacity=capacity)
    q, k, v = tokens(3)
    for keep, left in ((9, 3), (3, 3), (1, 1), (0, 0)):
        cache.crop(0)
        cache.append(k, v)
        cache.crop(keep)
        assert cache.length() == left
    again = cache.attend(q, k, v)
    assert torch.equal(again, hw.KVCache(capacity=capacity).attend(q, k, v))
    with pytest.raises(hw.CacheError, match="an int of at least 0, got -1"):
        cache.crop(-1)
    assert cache.length() == 3


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_reorder_moves_every_layer(capacity: int | None) -> None:
    cache = hw.KVCache(capacity=capacity)
    for layer in range(3):
        cache.append(*tokens(2 + layer, batch=6)[1:], layer=layer)
    before = [[rows.clone() for rows in cache.stored(layer)] for layer in range(3)]
    index = torch.tensor([0, 0, 2, 5, 3, 3])
    cache.reorder(index)
    for layer, old in enumerate(before):
        assert torch.equal(cache.stored(layer).key, old[0][index])
        assert torch.equal(cache.stored(layer).value, old[1][index])
    with pytest.raises(hw.CacheError, match="must name samples 0 to 5"):
        cache.reorder(torch.tensor([6]))


def test_only_growing_room_changes_its_batch() -> None:
    growing, fixed = hw.KVCache(), hw.KVCache(capacity=4)
    for cache in (growing, fixed):
        cache.append(*tokens(2)[1:])
    growing.reorder(torch.tensor([1, 0, 1]))
    assert growing.stored().key.shape[0] == 3
    with pytest.raises(hw.CacheError, match="the batch stays 2 samples, got 3"):
        fixed.reorder(torch.tensor([1, 0, 1]))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_unfilled_room_is_never_read(capacity: int | None) -> None:
    cache = hw.KVCache(capacity=capacity)
    q, k, v = tokens(3)
    cache.append(k, v)
    stored = cache.stored()
    whole = stored.key.as_strided((2, 2, 64, 8), stored.key.stride())
    whole[:, :, 3:] = float("nan")
    assert bool(cache.attend(q).isfinite().all())


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_failed_call_leaves_no_trace(capacity: int | None) -> None:
    cache = hw.KVCache(capacity=capacity)
    q, k, v = tokens(3)
    with pytest.raises(hw.PatternError):
        cache.attend(q, k, v, hw.KeyMask(torch.ones(2, 9)))
    assert cache.length() == 0
    cache.append(k, v)
    before = cache.stored().key.clone()
    with pytest.raises(hw.PatternError):
        cache.attend(q, k, v, hw.KeyMask(torch.ones(2, 9)))
    with pytest.raises(hw.CacheError, match="must continue what is stored"):
        cache.append(k[:1], v[:1])
    with pytest.raises(hw.CacheError, match="must continue what is stored"):
        cache.append(k.double(), v.double())
    with pytest.raises(hw.CacheError, match="must be given together"):
        cache.attend(q, k)
    assert cache.length() == 3
    assert torch.equal(cache.stored().key, before)


def test_full_room_refuses() -> None:
    cache = hw.KVCache(capacity=4)
    q, k, v = tokens(3)
    cache.attend(q, k, v)
    with pytest.raises(hw.CacheError, match="capacity is 4 tokens, 3 are stored and 3 more"):
        cache.attend(q, k, v)
    assert cache.length() == 3
    with pytest.raises(hw.CacheError, match="an int of at least 1 token"):
        hw.KVCache(capacity=0)


def test_cross_attention_reads_what_is_there() -> None:
    cache = hw.KVCache()
    q, k, v = tokens(5)
    cache.append(k, v, layer=7)
    assert torch.equal(cache.attend(q[:, :, :2], layer=7), hw.attend(q[:, :, :2], k, v))
    assert cache.length(7) == 5
    with pytest.raises(hw.CacheError, match=r"layer 0 holds nothing; layers \[7\] do"):
        cache.attend(q)


def test_modules_get_layers_of_their_own() -> None:
    cache = hw.KVCache()
    first, second = (hw.MultiHeadAttention(12, 3, pattern=hw.Causal()) for _ in range(2))
    x = torch.randn(2, 4, 12)
    for _ in range(2):
        second(first(x, cache=cache), cache=cache)
    assert [cache.length(layer) for layer in range(3)] == [8, 8, 0]
    with pytest.raises(hw.CacheError, match="layer 0 belongs to another module"):
        second(x, cache=cache, layer=0)


def test_gradients_flow_through_growing_steps() -> None:
    layer = hw.MultiHeadAttention(12, 3, pattern=hw.Causal())
    x = torch.randn(2, 6, 12)
    cache = hw.KVCache()
    steps = torch.cat([layer(x[:, i : i + 1], cache=cache) for i in range(6)], 1)
    wanted = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    found = torch.autograd.grad(steps.square().sum(), list(layer.parameters()))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    with pytest.raises(hw.CacheError, match="cannot carry gradients"):
        layer(x, cache=hw.KVCache(capacity=9))


def test_written_inside_and_outside_inference_mode() -> None:
    cache = hw.KVCache()
    q, k, v = tokens(3)
    with torch.inference_mode():
        cache.attend(q, k, v)
    with torch.no_grad():
        cache.attend(q, k, v)
    assert cache.length() == 6

"""Windows: what is seen, what is dropped, kept tokens, going back, constant memory."""

import pytest
import torch

import headwise as hw
from headwise.positions import Alibi
from tests.support.budget import assert_same_bits, largest_error
from tests.support.cache_tokens import piece, tokens


def seen(window: int, keep_first: int) -> hw.patterns.Pattern:
    near = hw.Window(window - 1, None)
    return hw.Causal() & (near | hw.Prefix(keep_first) if keep_first else near)


@pytest.mark.parametrize("keep_first", [0, 3])
@pytest.mark.parametrize("ends", [(1, 2, 3, 4, 5, 6, 7, 40), (30, 31, 32, 70), (2, 9, 60, 61)])
@pytest.mark.parametrize("sinks", [False, True])
def test_pieces_equal_the_windowed_whole(
    keep_first: int, ends: tuple[int, ...], sinks: bool
) -> None:
    q, k, v = tokens(ends[-1])
    cache = hw.KVCache(window=4, keep_first=keep_first, rollback=2)
    extras = {"bias": Alibi(4), "sinks": torch.randn(4) if sinks else None}
    found = []
    for start, end in zip((0, *ends), ends, strict=False):
        found.append(cache.attend(*piece((q, k, v), start, end), **extras))  # type: ignore[arg-type]
    wanted = hw.attend(q, k, v, seen(4, keep_first), **extras)  # type: ignore[arg-type]
    assert largest_error(torch.cat(found, 2), wanted.double()) < 2e-6
    assert cache.length() == ends[-1]


@pytest.mark.parametrize("keep_first", [0, 2])
def test_masks_and_biases_cover_all_tokens_ever_appended(keep_first: int) -> None:
    q, k, v = tokens(30)
    keys, pairs = torch.rand(2, 30) < 0.7, torch.rand(30, 30) < 0.8
    bias = torch.randn(2, 1, 30, 30)
    cache = hw.KVCache(window=5, keep_first=keep_first, rollback=0)
    found = []
    for end in range(1, 31):
        part = piece((q, k, v), end - 1, end)
        mask = hw.KeyMask(keys[:, :end]) & hw.Dense(pairs[end - 1 : end, :end])
        found.append(cache.attend(*part, hw.Causal() & mask, bias=bias[:, :, end - 1 : end, :end]))
    whole = seen(5, keep_first) & hw.KeyMask(keys) & hw.Dense(pairs)
    wanted = hw.attend(q, k, v, whole, bias=bias)
    assert largest_error(torch.cat(found, 2), wanted.double()) < 2e-6


@pytest.mark.usefixtures("plain_calls")
def test_wrong_masks_and_biases_leave_no_trace() -> None:
    _, k, v = tokens(30)
    cache = hw.KVCache(window=3, keep_first=1, rollback=1)
    cache.append(k, v)
    before = [rows.clone() for rows in cache.stored()]
    new = tokens(25)
    with pytest.raises(hw.PatternError, match="got 25 for 55 keys"):
        cache.attend(*new, hw.KeyMask(torch.ones(2, 25)))
    with pytest.raises(hw.ShapeError, match="a column for each of the 55 tokens appended, or 1"):
        cache.attend(*new, bias=torch.zeros(25, 25))
    one = piece(new, 0, 1)
    with pytest.raises(hw.ShapeError, match="sinks must hold one number per query head"):
        cache.attend(*one, sinks=torch.zeros(3))
    assert cache.length() == 30
    for rows, old in zip(cache.stored(), before, strict=True):
        assert_same_bits(rows, old)


def test_after_eight_tokens_all_are_shown_and_after_nine_the_last_eight() -> None:
    _, k, v = tokens(40)
    cache = hw.KVCache(window=8, rollback=0)
    cache.append(k[:, :, :6], v[:, :, :6])
    for end in range(7, 41):
        cache.append(k[:, :, end - 1 : end], v[:, :, end - 1 : end])
        assert_same_bits(cache.stored().key, k[:, :, max(end - 8, 0) : end])


def test_append_returns_what_the_new_queries_see() -> None:
    _, k, v = tokens(60)
    cache = hw.KVCache(window=8, keep_first=2, rollback=0)
    cache.append(k[:, :, :20], v[:, :, :20])
    found = cache.append(k[:, :, 20:60], v[:, :, 20:60])
    assert_same_bits(found.key, torch.cat([k[:, :, :2], k[:, :, 13:60]], 2))
    assert_same_bits(cache.stored().value, torch.cat([v[:, :, :2], v[:, :, 52:60]], 2))


def test_memory_stays() -> None:
    cache = hw.KVCache(window=8, keep_first=2, rollback=4)
    sizes = set()
    for count in (1, 1, 100, 1, 7, 50):
        cache.append(*tokens(count)[1:])
        sizes.add(cache.nbytes)
    assert sizes == {(2 + 2 * (8 + 4)) * 2 * 2 * (8 + 6) * 4}


@pytest.mark.parametrize("keep_first", [0, 2])
def test_the_last_tokens_can_be_given_back(keep_first: int) -> None:
    q, k, v = tokens(50)
    for length in range(1, 40):
        cache, fresh = (hw.KVCache(window=5, keep_first=keep_first, rollback=3) for _ in range(2))
        for start in range(length):
            cache.append(k[:, :, start : start + 1], v[:, :, start : start + 1])
        back = max(length - 3, 0)
        cache.crop(back)
        fresh.append(k[:, :, :back], v[:, :, :back])
        new = piece((q, k, v), 40, 43)
        found = cache.attend(*new)
        assert largest_error(found, fresh.attend(*new).double()) < 2e-6
        assert cache.length() == back + 3


def test_further_back_is_refused() -> None:
    _, k, v = tokens(40)
    cache = hw.KVCache(window=5, rollback=3)
    cache.append(k, v, layer=0)
    cache.append(k[:, :, :38], v[:, :, :38], layer=1)
    with pytest.raises(hw.CacheError) as caught:
        cache.crop(36)
    assert str(caught.value) == (
        "KVCache.crop: a window gives back its last 3 tokens, and cannot go from 40 tokens back to "
        "36\n  hint: build the cache with a larger rollback, or reset() it and start again"
    )
    assert [cache.length(layer) for layer in (0, 1)] == [40, 38]
    cache.crop(37)
    with pytest.raises(hw.CacheError, match="cannot go from 40 tokens back to 36"):
        cache.crop(36)
    cache.crop(0)
    assert cache.length() == 0


def test_queries_that_would_see_dropped_tokens_are_refused() -> None:
    q, k, v = tokens(40)
    cache = hw.KVCache(window=5, rollback=3)
    cache.append(k, v)
    assert cache.attend(q[:, :, :3], pattern=hw.Causal()).shape == (2, 4, 3, 6)
    with pytest.raises(hw.CacheError, match="no token that the window has dropped"):
        cache.attend(q[:, :, :9], pattern=hw.Causal())


def test_what_reads_all_tokens_and_gradients_are_refused() -> None:
    q, k, v = tokens(3)
    cache = hw.KVCache(window=5)
    with pytest.raises(hw.CacheError, match="a window of 5 drops some"), cache.appended(k, v):
        pass
    with pytest.raises(hw.CacheError, match="a window cannot carry gradients"):
        cache.attend(q.requires_grad_(), k, v)
    assert cache.length() == 0

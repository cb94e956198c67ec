"""Rows of different lengths: q_lengths, positions, padding, every kind of room."""

from collections.abc import Callable

import pytest
import torch

import headwise as hw
from tests.support.budget import assert_same_bits, largest_error
from tests.support.cache_tokens import each, piece, tokens
from tests.support.cache_tokens import row as rows_of

KINDS = ["growing", "fixed", "window", "paged", "int8"]


def made(kind: str) -> hw.KVCache:
    kinds: dict[str, Callable[[], hw.KVCache]] = {
        "growing": hw.KVCache,
        "fixed": lambda: hw.KVCache(capacity=40),
        "window": lambda: hw.KVCache(window=4, rollback=1),
        "paged": lambda: hw.KVCache(pool=hw.PagePool()),
        "int8": lambda: hw.KVCache(dtype=torch.int8),
    }
    return kinds[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_as_if_it_were_alone(kind: str) -> None:
    cache, alone = made(kind), [made(kind) for _ in range(2)]
    for count, real in ((3, (3, 1)), (1, (0, 1)), (5, (2, 5)), (1, (1, 1)), (20, (20, 7))):
        q, k, v = tokens(count)
        found = cache.attend(q, k, v, q_lengths=real)
        for row, (single, n) in enumerate(zip(alone, real, strict=True)):
            wanted = single.attend(*piece(rows_of((q, k, v), row), 0, n))
            assert largest_error(found[row : row + 1, :, :n], wanted.double()) < 2e-6
            assert not found[row, :, n:].any()
    assert cache.lengths().tolist() == [26, 15]
    assert cache.length() == 26


@pytest.mark.parametrize("kind", KINDS)
def test_padding_may_hold_anything(kind: str) -> None:
    cache, clean = made(kind), made(kind)
    for count, real in ((3, (3, 1)), (2, (1, 2))):
        q, k, v = tokens(count)
        bad = each(torch.clone, (q, k, v))
        for row, n in enumerate(real):
            for part in bad:
                part[row, :, n:] = float("nan")
        wanted = clean.attend(q, k, v, q_lengths=real)
        assert_same_bits(cache.attend(*bad, q_lengths=torch.tensor(real)), wanted)


def test_masks_and_biases_cover_the_longest_row() -> None:
    cache = hw.KVCache()
    _, k, v = tokens(5)
    cache.append(k, v, q_lengths=[5, 2])
    mask, bias = torch.rand(2, 6) < 0.7, torch.randn(1, 6)
    mask[:, 0] = True
    new = tokens(1)
    found = cache.attend(*new, hw.Causal() & hw.KeyMask(mask), bias=bias)
    for row, length in enumerate((6, 3)):
        keys, values = (
            torch.cat([old[row : row + 1, :, : length - 1], more[row : row + 1]], 2)
            for old, more in ((k, new[1]), (v, new[2]))
        )
        wanted = hw.attend(
            new[0][row : row + 1],
            keys,
            values,
            hw.KeyMask(mask[row, :length]),
            bias=bias[:, :length],
        )
        assert largest_error(found[row : row + 1], wanted.double()) < 1e-6


def test_queries_alone_stand_beside_the_last_key_of_their_row() -> None:
    cache = hw.KVCache()
    q, k, v = tokens(5)
    cache.append(k, v, q_lengths=[5, 3])
    found = cache.attend(q[:, :, :2], pattern=hw.Causal(), q_lengths=[2, 1])
    whole = hw.attend(q[:1, :, :2], k[:1], v[:1], hw.Causal())
    short = hw.attend(q[1:, :, :1], k[1:, :, :3], v[1:, :, :3])
    assert largest_error(found[:1], whole.double()) < 1e-6
    assert largest_error(found[1:, :, :1], short.double()) < 1e-6
    assert not found[1, :, 1].any()


def test_rows_before_position_zero() -> None:
    cache, plain = hw.KVCache(), hw.KVCache()
    q, k, v = tokens(4)
    wanted = plain.attend(q, k, v, q_lengths=[4, 2])
    found = cache.attend(q, k, v, q_lengths=[4, 2], kv_offset=-9)
    assert_same_bits(found, wanted)


def test_gradients_of_rows_of_different_lengths() -> None:
    q, k, v = each(torch.Tensor.requires_grad_, tokens(3))
    cache = hw.KVCache()
    first = cache.attend(q[:, :, :2], k[:, :, :2], v[:, :, :2], q_lengths=[2, 1])
    second = cache.attend(q[:, :, 2:], k[:, :, 2:], v[:, :, 2:])
    wanted = [
        hw.attend(q[:1], k[:1], v[:1], hw.Causal()),
        hw.attend(*each(lambda rows: rows[1:, :, [0, 2]], (q, k, v)), hw.Causal()),
    ]
    weight = torch.randn_like(wanted[0])
    found = (first[:1] * weight[:, :, :2]).sum() + (second * weight[:, :, 2:]).sum()
    found = found + (first[1:, :, :1] * weight[:, :, :1]).sum()
    exact = (wanted[0] * weight).sum() + (wanted[1] * weight[:, :, [0, 2]]).sum()
    for one, other in zip(
        torch.autograd.grad(found, (q, k, v)), torch.autograd.grad(exact, (q, k, v)), strict=True
    ):
        assert largest_error(one, other.double()) < 1e-5


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    ("q_lengths", "said"),
    [
        ([1], "one number for each of 2 rows, 0 to 3, got [1]"),
        ([4, 0], "one number for each of 2 rows, 0 to 3, got [4, 0]"),
        ([1, -1], "one number for each of 2 rows, 0 to 3, got [1, -1]"),
        ([0.5, 1], "q_lengths must be an int or 1-D integers (batch,), got [0.5, 1]"),
    ],
)
def test_lengths_that_do_not_fit(q_lengths: list[int], said: str) -> None:
    cache = hw.KVCache()
    q, k, v = tokens(3)
    with pytest.raises(hw.CacheError) as caught:
        cache.attend(q, k, v, q_lengths=q_lengths)
    assert said in str(caught.value)
    assert "hint: say for each row how many of the first tokens given are real" in str(caught.value)
    assert cache.length() == 0


def test_lengths_speak_of_the_tokens_that_are_appended() -> None:
    q, k, v = tokens(3)
    with pytest.raises(hw.CacheError, match="got 2 queries and 3 keys"):
        hw.KVCache().attend(q[:, :, :2], k, v, q_lengths=[1, 1])

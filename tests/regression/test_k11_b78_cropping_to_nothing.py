"""K11, B78: a cache cropped to 0 kept everything, and taking away too much left one token.

transformers#47433, #36616, #47720, #47977. ``crop`` counts what stays: 0 is nothing.
"""

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.cached_passes import KINDS, CacheKind

CASES = [("crop to none", 0, 0), ("one", 1, 1), ("all", 3, 3), ("more than all", 8, 3)]


def caches() -> list[CacheKind]:
    windows = {"window": 2, "kept": 2}
    return [
        CacheKind(name, 9, windows.get(name), int(name == "kept"), 16, dtype)
        for name in KINDS
        for dtype in (None, torch.int8)
    ]


def tokens(count: int) -> tuple[Tensor, Tensor, Tensor]:
    query = torch.randn(2, 4, count, 8)
    key, value = torch.randn(2, 2, 2, count, 8)
    return query, key, value


@pytest.mark.parametrize("kind", caches(), ids=lambda kind: f"{kind.name} {kind.dtype}")
@pytest.mark.parametrize(("_name", "keep", "left"), CASES, ids=[case[0] for case in CASES])
def test_what_stays(kind: CacheKind, _name: str, keep: int, left: int) -> None:
    first, then = tokens(3), tokens(2)
    cache, fresh = kind.make(), kind.make()
    cache.attend(*first)
    cache.crop(keep)
    assert cache.length() == left
    assert cache.lengths().tolist() == [left, left]
    fresh.append(*(tensor[:, :, :left] for tensor in first[1:]))
    assert_same_bits(cache.attend(*then), fresh.attend(*then))
    assert cache.length() == left + 2


@pytest.mark.parametrize("kind", caches(), ids=lambda kind: f"{kind.name} {kind.dtype}")
def test_a_negative_length_is_refused(kind: CacheKind) -> None:
    cache = kind.make()
    cache.attend(*tokens(3))
    with pytest.raises(hw.CacheError, match="an int of at least 0, got -5"):
        cache.crop(-5)
    assert cache.length() == 3

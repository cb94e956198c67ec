"""K10: dropout of calls with a cache, where no training flag is near and weights come in parts."""

import math

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.cached_passes import KINDS, CacheKind

KEYS, WINDOW = 40, 30
SHARE = 0.25


def filled(name: str) -> hw.KVCache:
    """Return a cache whose values name their token, so that outputs are weights."""
    window = WINDOW if name in ("window", "kept") else None
    cache = CacheKind(name, KEYS, window, 3 if name == "kept" else 0, 2).make()
    source = torch.Generator().manual_seed(1)
    key = torch.randn(16, 4, KEYS, 8, generator=source)
    cache.append(key, torch.eye(KEYS).expand(16, 4, -1, -1))
    return cache


def asked(cache: hw.KVCache, share: float, seed: int = 3) -> Tensor:
    query = torch.randn(16, 8, 2, 8, generator=torch.Generator().manual_seed(2))
    torch.manual_seed(seed)
    return cache.attend(query, pattern=hw.Causal(), dropout_p=share)


@pytest.mark.parametrize("name", KINDS)
def test_weights_that_are_kept_grow_and_the_others_are_gone(name: str) -> None:
    cache = filled(name)
    weights, found = asked(cache, 0.0), asked(cache, SHARE)
    kept = found != 0
    assert (weights[kept] != 0).all()
    torch.testing.assert_close(found[kept], weights[kept] / (1 - SHARE))
    count = int((weights != 0).sum())
    spread = math.sqrt(SHARE * (1 - SHARE) / count)
    assert abs(int(kept.sum()) / count - (1 - SHARE)) < 3 * spread
    assert_same_bits(asked(cache, SHARE), found)
    assert not torch.equal(asked(cache, SHARE, seed=4), found)
    assert (asked(cache, 1.0) == 0).all()


@pytest.mark.parametrize("name", KINDS)
def test_a_share_of_zero_draws_nothing(name: str) -> None:
    cache = filled(name)
    asked(cache, 0.0)
    before = torch.get_rng_state()
    cache.attend(torch.randn(16, 8, 1, 8, generator=torch.Generator()), pattern=None)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_decoding_in_eval_repeats_itself_and_draws_nothing(name: str) -> None:
    layer = hw.MultiHeadAttention(16, 4, dropout=0.5, pattern=hw.Causal()).eval()
    x = torch.randn(2, 6, 16)
    before = torch.get_rng_state()
    runs = []
    for _ in range(2):
        cache = CacheKind(name, 6, 4 if name in ("window", "kept") else None).make()
        runs.append(torch.cat([layer(piece, cache=cache) for piece in torch.split(x, 2, 1)], 1))
    assert_same_bits(runs[1], runs[0])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_share_that_is_none_leaves_the_cache_as_it_was() -> None:
    cache = filled("growing")
    with pytest.raises(ValueError, match="dropout_p must lie between 0 and 1"):
        asked(cache, 1.5)
    with pytest.raises(ValueError, match="dropout_p must lie between 0 and 1"):
        cache.attend(torch.randn(16, 8, 1, 8), *cache.stored(), dropout_p=-0.5)
    assert cache.length() == KEYS

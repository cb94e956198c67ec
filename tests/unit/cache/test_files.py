"""Caches as files: all kinds come back; what is no whole cache is refused."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.cache_tokens import tokens

KINDS: dict[str, dict[str, object]] = {
    "growing": {},
    "fixed": {"capacity": 200},
    "window": {"window": 4, "rollback": 1},
    "kept": {"window": 4, "keep_first": 2},
    "paged": {"pool": None},
}


class Foreign(NamedTuple):
    sums: Tensor


def filled(kind: str, dtype: torch.dtype | None, real: int | None = None) -> hw.KVCache:
    pool = hw.PagePool() if kind == "paged" else None
    cache = hw.KVCache(dtype=dtype, **KINDS[kind] | {"pool": pool})  # type: ignore[arg-type]
    for layer in range(2):
        for count in (3, 40, 1):
            lengths = None if real is None else [count, min(real, count)]
            cache.attend(*tokens(count), layer=layer, q_lengths=lengths)
    return cache


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [None, torch.int8, torch.bfloat16])
@pytest.mark.parametrize("real", [None, 2])
def test_a_cache_comes_back(
    kind: str, dtype: torch.dtype | None, real: int | None, tmp_path: Path
) -> None:
    cache, path = filled(kind, dtype, real), tmp_path / "cache.safetensors"
    cache.save(path)
    loaded = hw.KVCache.load(path)
    new = tokens(2)
    for layer in range(2):
        assert torch.equal(loaded.lengths(layer), cache.lengths(layer))
        assert_same_bits(loaded.attend(*new, layer=layer), cache.attend(*new, layer=layer))
    assert [file.name for file in tmp_path.iterdir()] == ["cache.safetensors"]


def test_nothing_of_the_unfilled_room_is_written(tmp_path: Path) -> None:
    cache, path = filled("growing", None, 2), tmp_path / "cache.safetensors"
    cache.save(path)
    with safe_open(path, "pt") as file:
        assert not file.get_tensor("layers.0.0")[1, :, 5:].any()


def test_states_come_back(tmp_path: Path) -> None:
    cache, path = hw.KVCache(), tmp_path / "cache.safetensors"
    sums = torch.randn(2, 3)
    state = {"sums": (sums, [torch.arange(2), None])}
    cache.set_state(1, state, length=4)
    cache.save(path)
    loaded = hw.KVCache.load(path)
    assert loaded.length(1) == 4
    found = loaded.state(1)
    assert_same_bits(found["sums"][0], sums)
    assert found["sums"][1][1] is None
    cache.set_state(1, Foreign(torch.ones(2)))
    with pytest.raises(hw.CacheError, match=r"got Foreign of tests\.unit\.cache"):
        cache.save(path)
    assert hw.KVCache.load(path).length(1) == 4


def test_modules_take_layers_over_in_order(tmp_path: Path) -> None:
    layers = [hw.MultiHeadAttention(12, 3, pattern=hw.Causal()) for _ in range(2)]
    cache, x = hw.KVCache(), torch.randn(2, 4, 12)
    with torch.no_grad():
        layers[1](layers[0](x, cache=cache), cache=cache)
        cache.save(tmp_path / "cache")
        loaded = hw.KVCache.load(tmp_path / "cache")
        wanted = layers[1](layers[0](x, cache=cache), cache=cache)
        assert_same_bits(layers[1](layers[0](x, cache=loaded), cache=loaded), wanted)
    assert [loaded.length(layer) for layer in range(3)] == [8, 8, 0]


def test_a_pool_can_be_given(tmp_path: Path) -> None:
    filled("paged", None).save(tmp_path / "paged")
    pool = hw.PagePool(5)
    cache = hw.KVCache.load(tmp_path / "paged", pool=pool)
    assert pool.used == 4
    with pytest.raises(hw.CacheError, match="all 5 pages are in use but 1"):
        hw.KVCache.load(tmp_path / "paged", pool=pool)
    assert cache.pool is pool
    filled("growing", None).save(tmp_path / "growing")
    with pytest.raises(hw.CacheError, match="pool is for a cache in pages"):
        hw.KVCache.load(tmp_path / "growing", pool=pool)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_files_that_are_cut_off(share: float, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    filled("growing", None).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(hw.CacheError, match="must be a whole safetensors file, and reading says"):
        hw.KVCache.load(path)


def test_files_of_others_and_of_other_versions(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    save_file({"weight": torch.ones(2)}, path, {"format": "pt"})
    with pytest.raises(hw.CacheError, match="must be a cache, got the format 'pt'"):
        hw.KVCache.load(path)
    save_file({}, path, {"format": "headwise.KVCache", "version": "3"})
    with pytest.raises(hw.CacheError, match="must be of version 1 or 2, got '3'"):
        hw.KVCache.load(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        hw.KVCache.load(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"save: there is no folder '.*none' for 'cache'"):
        hw.KVCache().save(tmp_path / "none" / "cache")


def test_a_link_is_followed_and_modes_are_kept(tmp_path: Path) -> None:
    target, link, fresh = (tmp_path / name for name in ("target", "link", "fresh"))
    target.touch()
    target.chmod(0o640)
    link.symlink_to(target)
    cache = filled("growing", None)
    before = os.umask(0o027)
    try:
        cache.save(link)
        cache.save(fresh)
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert hw.KVCache.load(target).length() == 44
    assert [path.stat().st_mode & 0o777 for path in (target, fresh)] == [0o640, 0o640]
    target.chmod(0o604)
    cache.save(target)
    assert target.stat().st_mode & 0o777 == 0o604

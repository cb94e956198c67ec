"""A module's layer for a block of code, and what a failure leaves; layers that are no numbers."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.cache_tokens import tokens


class Holder:
    """A cache and its module, in either order."""

    def __init__(self, *, cache_first: bool) -> None:
        layers = [torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]
        if cache_first:
            self.cache, self.layers = hw.KVCache(), layers
        else:
            self.layers, self.cache = layers, hw.KVCache()
        for layer in layers:
            self.cache.append(*tokens(3)[1:], layer=self.cache.slot(layer))


def fail_in_claim(cache: hw.KVCache, module: object, error: type[BaseException]) -> None:
    with cache.claimed(module) as layer:
        cache.append(*tokens(2)[1:], layer=layer)
        cache.set_state(layer, torch.zeros(2))
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", [{}, {"capacity": 9}, {"window": 4}, {"pool": hw.PagePool()}])
def test_a_claim_that_fails_leaves_no_trace(
    kind: dict[str, object], error: type[BaseException]
) -> None:
    cache = hw.KVCache(**kind)  # type: ignore[arg-type]
    old, new = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    with cache.claimed(old) as layer:
        cache.append(*tokens(3)[1:], layer=layer)
        cache.set_state(layer, torch.ones(2))
    kept = cache.stored().key.clone()
    for module in (old, new):
        with pytest.raises(error):
            fail_in_claim(cache, module, error)
    assert (cache.length(0), cache.length(1), cache.state(1)) == (3, 0, None)
    assert_same_bits(cache.stored().key, kept)
    assert_same_bits(cache.state(0), torch.ones(2))
    assert cache.peek(torch.nn.Linear(1, 1)) == 1


def test_a_claim_that_fails_gives_a_loaded_layer_back() -> None:
    cache = hw.KVCache()
    cache.append(*tokens(3)[1:], layer=2)
    cache._slots._unowned.add(2)
    with pytest.raises(ValueError, match="no"), cache.claimed(torch.nn.Linear(1, 1)):
        raise ValueError("no")
    assert cache.slot(torch.nn.Linear(1, 1)) == 2


def test_a_look_claims_nothing() -> None:
    cache, (one, two) = hw.KVCache(), (torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    assert (cache.peek(one), cache.peek(two), cache.slot(two), cache.peek(one)) == (0, 0, 0, 1)
    cache.append(*tokens(3)[1:], layer=0)
    with pytest.raises(hw.CacheError, match="layer 0 belongs to another module"):
        cache.peek(one, 0)


@pytest.mark.parametrize("cache_first", [True, False])
def test_a_deep_copy_does_not_depend_on_the_order(cache_first: bool) -> None:
    holder = Holder(cache_first=cache_first)
    twin = deepcopy(holder)
    for number, (old, new) in enumerate(zip(holder.layers, twin.layers, strict=True)):
        assert twin.cache.slot(new) == number
        assert holder.cache.slot(old) == number
        with pytest.raises(hw.CacheError, match="belongs to another module"):
            twin.cache.slot(old, number)


def test_a_deep_copy_alone_keeps_its_owners() -> None:
    holder = Holder(cache_first=True)
    twin = deepcopy(holder.cache)
    assert [twin.slot(layer) for layer in holder.layers] == [0, 1]


CALLS: dict[str, Callable[[hw.KVCache, object], object]] = {
    "attend": lambda cache, layer: cache.attend(*tokens(1), layer=layer),  # type: ignore[arg-type]
    "append": lambda cache, layer: cache.append(*tokens(1)[1:], layer=layer),  # type: ignore[arg-type]
    "appended": lambda cache, layer: cache.appended(*tokens(1)[1:], layer=layer).__enter__(),  # type: ignore[arg-type]
    "stored": lambda cache, layer: cache.stored(layer),  # type: ignore[arg-type]
    "slot": lambda cache, layer: cache.slot(cache, layer),  # type: ignore[arg-type]
    "set_state": lambda cache, layer: cache.set_state(layer, torch.ones(2)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("layer", [-1, True, 1.0, "0"])
def test_layers_are_numbers(call: str, layer: object) -> None:
    cache = hw.KVCache()
    with pytest.raises(hw.CacheError, match=f"^KVCache.{call}: layer must be an int of at least 0"):
        CALLS[call](cache, layer)
    assert cache.nbytes == 0


def test_crop_takes_the_layers_named() -> None:
    cache = hw.KVCache()
    for layer in (0, 1):
        cache.append(*tokens(5)[1:], layer=layer)
    cache.set_state(7, torch.ones(2))
    cache.crop(3, layers=[0])
    assert (cache.length(0), cache.length(1)) == (3, 5)
    with pytest.raises(hw.CacheError, match=r"layers must hold something, got \[0, 4\]"):
        cache.crop(1, layers=[0, 4])
    with pytest.raises(hw.CacheError, match="layers must be several numbers, got 0"):
        cache.crop(1, layers=0)  # type: ignore[arg-type]
    with pytest.raises(hw.CacheError, match="layer must be an int of at least 0, got -1"):
        cache.crop(1, layers=[-1])
    assert (cache.length(0), cache.length(1)) == (3, 5)


def test_a_state_and_tokens_are_of_one_batch() -> None:
    cache = hw.KVCache()
    cache.set_state(0, torch.ones(3))
    with pytest.raises(hw.CacheError, match="layer 0 has a state of 3 samples, and the new one"):
        cache.set_state(0, torch.ones(2))
    with pytest.raises(hw.CacheError, match="state of 3 samples, and key and value are of 2"):
        cache.append(*tokens(1)[1:])
    assert cache.nbytes == 12


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ([0, 1], "index must be a tensor, got list"),
        (torch.zeros(0, dtype=torch.int64), "index must name a sample, got none"),
        (torch.tensor([0, 1]), r"all layers must be of one batch, got \[2, 3\] samples"),
    ],
)
def test_indices_that_name_no_rows(index: torch.Tensor, said: str) -> None:
    cache = hw.KVCache()
    cache.append(*tokens(3)[1:])
    if "one batch" in said:
        cache.append(*tokens(3, 3)[1:], layer=1)
    with pytest.raises(hw.CacheError, match=said):
        cache.reorder(index)
    assert cache.length() == 3

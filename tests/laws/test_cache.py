"""Laws of the cache: every kind, cut anywhere, gives the numbers of the whole pass."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.cached_passes import KINDS, STORED, CacheKind, Pass, cache_kinds, ends, passes
from tests.support.shapes import Inputs, Sizes, inputs

few = settings(max_examples=settings().max_examples // 2)
on_kinds = pytest.mark.parametrize("name", KINDS)


def cut(given_: Inputs, start: int, end: int) -> Inputs:
    return Inputs(*(tensor[:, :, start:end] for tensor in given_))


def in_pieces(cache: hw.KVCache, whole: Pass, places: list[int]) -> Tensor:
    """Run a pass through a cache, piece by piece."""
    found = [
        cache.attend(*cut(whole.given, start, end), whole.pattern, **whole.keywords)
        for start, end in pairwise(places)
    ]
    return torch.cat(found, 2)


def judge_all(found: Tensor, whole: Pass, kind: CacheKind) -> None:
    key, value = kind.rounded(whole.given.key, whole.given.value)
    for sample, output in enumerate(found):
        own = Inputs(whole.given.query[sample], key[sample], value[sample])
        whole.judge(output, own, kind)


@on_kinds
@given(data=st.data())
def test_pieces_are_the_whole_pass(name: str, data: st.DataObject) -> None:
    whole = data.draw(passes())
    length = whole.given.key.shape[2]
    kind = data.draw(cache_kinds(name, length))
    cache, places = kind.make(), data.draw(ends(length))
    found = in_pieces(cache, whole, places)
    assert cache.length() == length
    assert cache.lengths().tolist() == [length] * whole.given.key.shape[0]
    judge_all(found, whole, kind)


@on_kinds
@few
@given(data=st.data())
def test_one_sample_at_a_time(name: str, data: st.DataObject) -> None:
    whole = data.draw(passes())
    length = whole.given.key.shape[2]
    kind = data.draw(cache_kinds(name, length))
    places = data.draw(ends(length))
    together = in_pieces(kind.make(), whole, places)
    for sample in range(together.shape[0]):
        own = Inputs(*(tensor[sample : sample + 1] for tensor in whole.given))
        alone = Pass(own, whole.pattern, *whole.keywords.values())
        found = in_pieces(kind.make(), alone, places)
        judge_all(found, alone, kind)
        if name != "kept":  # its two parts are joined by torch, whose bits depend on the batch
            assert_same_bits(found[0], together[sample], str(kind))


@pytest.mark.parametrize("stored", STORED, ids=str)
@on_kinds
@few
@given(data=st.data())
def test_what_is_stored_was_rounded_once(
    name: str, stored: torch.dtype | None, data: st.DataObject
) -> None:
    """Whatever the pieces; of 8 bits, a row is off by half a 127th of its largest number."""
    length = data.draw(st.sampled_from([1, 5, 130]))
    spread = data.draw(st.sampled_from([1e-6, 1.0, 1e3]))
    _, key, value = inputs(Sizes(2, 2, 1, 1, length, 8, 5), spread=spread)
    key[:, :, length // 2] = 0
    kind = data.draw(cache_kinds(name, length, [stored]))
    cache = kind.make()
    for start, end in pairwise(data.draw(ends(length))):
        cache.append(key[:, :, start:end], value[:, :, start:end])
    for held, all_given in zip(cache.stored(), (key, value), strict=True):
        if kind.window is None:
            assert held.shape == all_given.shape
        given_ = all_given[:, :, length - held.shape[2] :] if name == "window" else all_given
        if name == "kept" and held.shape[2] < length:
            first, rest = kind.keep_first, held.shape[2] - kind.keep_first
            given_ = torch.cat([all_given[:, :, :first], all_given[:, :, length - rest :]], 2)
        if stored is torch.int8:
            largest = given_.abs().amax(-1, keepdim=True)
            assert ((held - given_).abs() <= largest / 127 * 0.5001).all()
        else:
            assert_same_bits(held, given_ if stored is None else given_.to(stored))


@on_kinds
@given(data=st.data())
def test_tokens_given_back_never_were(name: str, data: st.DataObject) -> None:
    whole = data.draw(passes())
    length = whole.given.key.shape[2]
    kind = data.draw(cache_kinds(name, length + 16))
    cache, places = kind.make(), data.draw(ends(length))
    found = []
    for start, end in pairwise(places):
        wasted = data.draw(st.integers(0, min(kind.rollback, 3) if kind.window else 3))
        if start and wasted:
            wrong = Inputs(*(torch.full_like(t[:, :, :wasted], torch.nan) for t in whole.given))
            cache.attend(*wrong, whole.pattern, **whole.keywords)
            assert cache.length() == start + wasted
            cache.crop(start)
            assert cache.length() == start
        piece = cut(whole.given, start, end)
        found.append(cache.attend(*piece, whole.pattern, **whole.keywords))
    judge_all(torch.cat(found, 2), whole, kind)


@on_kinds
@given(data=st.data())
def test_forks_go_their_own_ways(name: str, data: st.DataObject) -> None:
    """Each of them, and the one they come from, as if it were alone."""
    whole = data.draw(passes(lengths=(3, 9, 50, 140)))
    length = whole.given.key.shape[2]
    kind = data.draw(cache_kinds(name, length))
    start = kind.make()
    split = data.draw(st.integers(0, length - 1))
    begun = in_pieces(start, whole, [0, split])
    caches = [start, start.fork(), start.fork()]
    others = [
        Pass(
            Inputs(
                *(
                    torch.cat([old[:, :, :split], torch.randn_like(old[:, :, split:])], 2)
                    for old in whole.given
                )
            ),
            whole.pattern,
            *whole.keywords.values(),
        )
        for _ in caches
    ]
    found: list[list[Tensor]] = [[begun] for _ in caches]
    places = [split, split + 1, length]
    for a, b in pairwise(places):
        for cache, other, outputs in zip(caches, others, found, strict=True):
            outputs.append(cache.attend(*cut(other.given, a, b), other.pattern, **other.keywords))
    for other, outputs in zip(others, found, strict=True):
        judge_all(torch.cat(outputs, 2), other, kind)


@on_kinds
@few
@given(data=st.data())
def test_beams_take_everything_along(name: str, data: st.DataObject) -> None:
    whole = data.draw(passes())
    batch, _, length, _ = whole.given.key.shape
    kind = data.draw(cache_kinds(name, length))
    cache = kind.make()
    samples = batch if name == "fixed" else data.draw(st.integers(1, 4))
    split = data.draw(st.integers(1, length))
    in_pieces(cache, whole, [0, split])
    index = torch.tensor([data.draw(st.integers(0, batch - 1)) for _ in range(samples)])
    before = [held.clone() for held in cache.stored()]
    cache.reorder(index)
    for held, old in zip(cache.stored(), before, strict=True):
        assert_same_bits(held, old[index])
    chosen = Pass(
        Inputs(*(tensor[index] for tensor in whole.given)), whole.pattern, *whole.keywords.values()
    )
    last = in_pieces(cache, chosen, [split, length])
    alone = kind.make()
    wanted = in_pieces(alone, chosen, [0, split, length])[:, :, split:]
    assert_same_bits(last, wanted)


@on_kinds
@few
@given(data=st.data())
def test_a_file_brings_it_back(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = data.draw(passes(lengths=(3, 9, 50, 140)))
    length = whole.given.key.shape[2]
    kind = data.draw(cache_kinds(name, length))
    cache = kind.make()
    in_pieces(cache, whole, [0, data.draw(st.integers(0, length - 1)), length - 1])
    path: Path = tmp_path_factory.mktemp("cache") / "cache.safetensors"
    cache.save(path)
    loaded = hw.KVCache.load(path)
    assert loaded.lengths().tolist() == cache.lengths().tolist()
    for held, wanted in zip(loaded.stored(), cache.stored(), strict=True):
        assert_same_bits(held, wanted)
    step = cut(whole.given, length - 1, length)
    found = loaded.attend(*step, whole.pattern, **whole.keywords)
    assert_same_bits(found, cache.attend(*step, whole.pattern, **whole.keywords))


Failing = Callable[[hw.KVCache, Inputs], object]

FAILURES: dict[str, Failing] = {
    "another batch": lambda cache, g: cache.attend(*Inputs(*(t[:1] for t in g))),
    "another dtype": lambda cache, g: cache.attend(*Inputs(*(t.double() for t in g))),
    "another device": lambda cache, g: cache.append(g.key.to("meta"), g.value.to("meta")),
    "another number of heads": lambda cache, g: cache.append(g.key[:, :1], g.value[:, :1]),
    "other widths": lambda cache, g: cache.append(g.key[..., :3], g.value),
    "a value left out": lambda cache, g: cache.attend(g.query, g.key),
    "no such backend": lambda cache, g: cache.attend(*g, backend="none"),
    "a mask of another length": lambda cache, g: cache.attend(*g, hw.KeyMask(torch.ones(2, 1))),
    "another layer's tokens": lambda cache, g: cache.attend(g.query, layer=3),
    "samples that are not there": lambda cache, g: cache.reorder(torch.tensor([0, 2])),
    "a sample before the first": lambda cache, g: cache.reorder(torch.tensor([-1, 0])),
    "a length below none": lambda cache, g: cache.crop(-1),
    "more real tokens than given": lambda cache, g: cache.attend(
        *g, q_lengths=torch.tensor([1, 9])
    ),
    "fewer than none": lambda cache, g: cache.attend(*g, q_lengths=torch.tensor([1, -1])),
    "lengths for other rows": lambda cache, g: cache.attend(*g, q_lengths=torch.tensor([1])),
}


def picture(cache: hw.KVCache) -> list[Tensor]:
    layers = (0, 1)
    return [
        torch.tensor(cache.nbytes),
        *(cache.lengths(layer).clone() for layer in layers),
        *(tensor.clone() for layer in layers for tensor in cache.stored(layer)),
    ]


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize("failure", FAILURES)
@on_kinds
@few
@given(data=st.data())
def test_a_call_that_fails_changes_nothing(name: str, failure: str, data: st.DataObject) -> None:
    held = data.draw(st.sampled_from([1, 7, 64, 128]))
    kind = data.draw(cache_kinds(name, held + 4))
    given_ = inputs(Sizes(2, 2, 2, held, held, 8, 5))
    more = inputs(Sizes(2, 2, 2, 2, 2, 8, 5), seed=1)
    cache = kind.make()
    for layer in (0, 1):
        cache.attend(*given_, layer=layer)
    before = picture(cache)
    with pytest.raises((ValueError, RuntimeError, TypeError, NotImplementedError)):
        FAILURES[failure](cache, more)
    for found, wanted in zip(picture(cache), before, strict=True):
        assert_same_bits(found, wanted, f"{failure}, {kind}")
    untouched = kind.make()
    untouched.attend(*given_)
    assert_same_bits(cache.attend(*more), untouched.attend(*more))

"""Laws of rows that differ: any story of a cache is that of its rows, each told alone."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.cached_passes import KINDS, CacheKind, Pass, cache_kinds, passes
from tests.support.shapes import Inputs

few = settings(max_examples=settings().max_examples // 2)
LAYERS = (0, 1)
CAPACITY = 40


@dataclass
class Row:
    """What one sample of one layer holds, and the most it ever held."""

    key: Tensor
    value: Tensor
    most: int = 0

    @property
    def length(self) -> int:
        return self.key.shape[1]

    def add(self, key: Tensor, value: Tensor) -> None:
        self.key, self.value = torch.cat([self.key, key], 1), torch.cat([self.value, value], 1)
        self.most = max(self.most, self.length)

    def crop(self, length: int) -> None:
        self.key, self.value = self.key[:, :length], self.value[:, :length]


@dataclass
class Story:
    """A cache, and what its rows should hold."""

    kind: CacheKind
    call: Pass
    cache: hw.KVCache
    rows: list[list[Row]] = field(default_factory=list)

    @classmethod
    def begun(cls, kind: CacheKind, call: Pass) -> "Story":
        story = cls(kind, call, kind.make())
        story.rows = [story.empty(call.given.key.shape[0]) for _ in LAYERS]
        return story

    def empty(self, batch: int) -> list[Row]:
        key, value = self.kind.rounded(self.call.given.key, self.call.given.value)
        return [Row(key[0, :, :0], value[0, :, :0]) for _ in range(batch)]

    @property
    def batch(self) -> int:
        return len(self.rows[0])

    def drawn(self, new: int) -> Inputs:
        shapes = [(self.batch, t.shape[1], new, t.shape[3]) for t in self.call.given]
        return Inputs(*(torch.randn(shape).to(self.call.given.query.dtype) for shape in shapes))

    def told(self, new: int, counts: list[int] | None) -> None:
        """Attend with new tokens in each layer; past a row's count they are NaN."""
        real = [new] * self.batch if counts is None else counts
        for layer, rows in zip(LAYERS, self.rows, strict=True):
            fresh = self.drawn(new)
            key, value = self.kind.rounded(fresh.key, fresh.value)
            for row, count, old in zip(rows, real, zip(key, value, strict=True), strict=True):
                row.add(*(tensor[:, :count] for tensor in old))
            for tensor in fresh:
                for sample, count in enumerate(real):
                    tensor[sample, :, count:] = torch.nan
            found = self.cache.attend(
                *fresh,
                self.call.pattern,
                layer=layer,
                q_lengths=None if counts is None else torch.tensor(counts),
                **self.call.keywords,
            )
            for sample, (row, count) in enumerate(zip(rows, real, strict=True)):
                own = Inputs(fresh.query[sample, :, :count], row.key, row.value)
                self.call.judge(found[sample, :, :count], own, self.kind)
                assert (found[sample, :, count:] == 0).all()

    def refused_below(self) -> int:
        """Return the length below which a window could not go back."""
        if self.kind.window is None:
            return 0
        rows = [row for layer in self.rows for row in layer]
        return max(0, *(row.most - self.kind.rollback for row in rows))

    def check(self) -> None:
        for layer, rows in zip(LAYERS, self.rows, strict=True):
            wanted = [row.length for row in rows]
            assert self.cache.length(layer) == max(wanted, default=0)
            if self.cache.length(layer):
                assert self.cache.lengths(layer).tolist() == wanted


def next_event(data: st.DataObject, story: Story, folder: Path) -> Story:
    """Draw what happens to a story; return the one to go on with."""
    longest = max(row.length for row in story.rows[0])
    event = data.draw(st.sampled_from(["tell", "tell", "rows", "rows", "crop", "beams", *RARE]))
    match event:
        case "tell" | "rows":
            new = data.draw(st.sampled_from([1, 1, 0, 2, 5, 17]))
            if story.kind.name == "fixed":
                new = min(new, CAPACITY - longest)
            counts = [data.draw(st.integers(0, new)) for _ in range(story.batch)]
            story.told(new, counts if event == "rows" else None)
        case "crop":
            length = data.draw(st.integers(min(story.refused_below(), longest), longest + 2))
            story.cache.crop(length)
            for row in (row for layer in story.rows for row in layer):
                row.crop(length)
        case "beams":
            size = story.batch if story.kind.name == "fixed" else data.draw(st.integers(1, 4))
            index = [data.draw(st.integers(0, story.batch - 1)) for _ in range(size)]
            story.cache.reorder(torch.tensor(index))
            story.rows = [[replace(rows[source]) for source in index] for rows in story.rows]
        case "fork":
            rows = [[replace(row) for row in layer] for layer in story.rows]
            return Story(story.kind, story.call, story.cache.fork(), rows)
        case "file":
            if longest:
                story.cache.save(folder / "cache.safetensors")
                story.cache = hw.KVCache.load(folder / "cache.safetensors")
        case "reset":
            story.cache.reset()
            story.rows = [story.empty(story.batch) for _ in LAYERS]
    return story


RARE = ("fork", "file", "reset")


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_any_story(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Appending to some rows, giving back, beams, forks, files, starting anew."""
    call = data.draw(passes(lengths=(1,)))
    story = Story.begun(data.draw(cache_kinds(name, CAPACITY)), call)
    folder = tmp_path_factory.mktemp("story")
    told = [story]
    story.told(data.draw(st.sampled_from([1, 6, 30])), None)
    for _ in range(data.draw(st.integers(1, 8))):
        story = next_event(data, story, folder)
        story.check()
        if story is not told[-1]:
            told.append(story)
    for each in told:
        each.told(0, None)
        each.told(1 if each.kind.name != "fixed" else 0, None)
        each.check()


@pytest.mark.parametrize("name", KINDS)
@few
@given(data=st.data())
def test_rows_of_one_length_are_a_batch(name: str, data: st.DataObject) -> None:
    """``q_lengths`` that leave nothing out change no bit."""
    call = data.draw(passes(lengths=(9, 50)))
    batch, _, length, _ = call.given.key.shape
    kind = data.draw(cache_kinds(name, length))
    whole, counted = kind.make(), kind.make()
    wanted = whole.attend(*call.given, call.pattern, **call.keywords)
    found = counted.attend(
        *call.given, call.pattern, q_lengths=torch.full((batch,), length), **call.keywords
    )
    assert_same_bits(found, wanted)


@pytest.mark.parametrize("name", ["window", "kept"])
@given(data=st.data())
def test_a_window_gives_back_its_last_tokens_and_no_more(name: str, data: st.DataObject) -> None:
    call = data.draw(passes(lengths=(1,)))
    kind = data.draw(cache_kinds(name, CAPACITY))
    assert kind.window is not None
    story = Story.begun(kind, call)
    new = kind.keep_first + kind.window + kind.rollback + data.draw(st.integers(1, 90))
    story.told(new, None)
    with pytest.raises(hw.CacheError, match=str(kind.rollback)):
        story.cache.crop(new - kind.rollback - 1)
    story.check()
    story.cache.crop(new - kind.rollback)
    for row in (row for layer in story.rows for row in layer):
        row.crop(new - kind.rollback)
    story.told(1, None)
    story.check()

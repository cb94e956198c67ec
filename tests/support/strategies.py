"""Generators of calls and patterns for hypothesis."""

from dataclasses import dataclass
from typing import TypedDict

import torch
from hypothesis import strategies as st
from torch import Tensor

from headwise.patterns import (
    Causal,
    Dense,
    Documents,
    Full,
    KeyMask,
    Lengths,
    Pattern,
    Prefix,
    Window,
)
from headwise.positions import Alibi, RelativeBias

SHORT = st.integers(1, 9)


class Offsets(TypedDict):
    """The keyword arguments that say where queries and keys stand."""

    q_offset: int | Tensor | None
    kv_offset: int | Tensor


@dataclass(frozen=True)
class Setting:
    """Sizes of a call and where its queries and keys stand; offsets are one per sample or one."""

    batch: int
    heads: int
    q_len: int
    kv_len: int
    q_offset: int | tuple[int, ...] | None = None
    kv_offset: int | tuple[int, ...] = 0

    def positions(self, sample: int) -> tuple[int, int]:
        """Return where the first query and the first key of a sample stand."""
        key = self.kv_offset if isinstance(self.kv_offset, int) else self.kv_offset[sample]
        if self.q_offset is None:
            return key + self.kv_len - self.q_len, key
        return (self.q_offset if isinstance(self.q_offset, int) else self.q_offset[sample]), key

    @property
    def offsets(self) -> Offsets:
        """The offsets as a caller writes them: an int, or a tensor with one per sample."""
        q_offset = None if self.q_offset is None else _written(self.q_offset)
        return {"q_offset": q_offset, "kv_offset": _written(self.kv_offset)}


def _written(offset: int | tuple[int, ...]) -> int | Tensor:
    return torch.tensor(offset) if isinstance(offset, tuple) else offset


def _mask(seed: int, *shape: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=source) < 0.6


@st.composite
def settings_of_calls(draw: st.DrawFn, lengths: st.SearchStrategy[int] = SHORT) -> Setting:
    """Draw sizes and offsets, plain ones most of the time."""
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    q_len, kv_len = draw(lengths), draw(lengths)
    each = st.integers(0, 12)
    many = st.tuples(*[each] * batch)
    q_offset = draw(st.none() | each | many)
    kv_offset = draw(st.just(0) | st.just(0) | each | many)
    return Setting(batch, heads, q_len, kv_len, q_offset, kv_offset)


@st.composite
def leaves(draw: st.DrawFn, setting: Setting) -> Pattern:
    """Draw a pattern with no parts that fits ``setting``."""
    size = max(setting.q_len, setting.kv_len) + 3
    batch, seed = setting.batch, draw(st.integers(0, 1000))
    count = st.integers(0, size)
    per_sample = st.lists(count, min_size=batch, max_size=batch).map(tuple)
    counts = st.one_of(count, per_sample, per_sample.map(torch.tensor))
    edge = st.none() | count
    choices: list[st.SearchStrategy[Pattern]] = [
        st.just(Full()),
        st.just(Causal()),
        st.builds(Window, edge, edge, st.integers(1, 3)),
        st.builds(Prefix, counts),
        st.builds(Lengths, counts),
        st.builds(Lengths, counts, counts),
        st.just(KeyMask(_mask(seed, setting.kv_len))),
        st.just(KeyMask(_mask(seed, batch, setting.kv_len))),
        st.just(Dense(_mask(seed, setting.q_len, setting.kv_len))),
        st.builds(
            lambda b, h, q, k: Dense(_mask(seed, b, h, q, k)),
            st.sampled_from([1, batch]),
            st.sampled_from([1, setting.heads]),
            st.sampled_from([1, setting.q_len]),
            st.sampled_from([1, setting.kv_len]),
        ),
    ]
    places = [setting.positions(sample) for sample in range(batch)]
    if min(min(place) for place in places) >= 0:
        known = max(max(q + setting.q_len, k + setting.kv_len) for q, k in places)
        ids = torch.randint(-1, 3, (2, batch, known), generator=torch.Generator().manual_seed(seed))
        packed = torch.arange(known) // draw(st.integers(1, known))
        choices += [
            st.just(Documents(ids[0])),
            st.just(Documents(ids[0, 0])),
            st.just(Documents(ids[0], ids[1])),
            st.just(Documents(packed)),
        ]
    return draw(st.one_of(choices))


def patterns(setting: Setting) -> st.SearchStrategy[Pattern]:
    """Draw any combination of up to four leaves that fits ``setting``."""
    return st.recursive(
        leaves(setting),
        lambda inner: st.one_of(
            st.builds(lambda a, b: a & b, inner, inner),
            st.builds(lambda a, b: a | b, inner, inner),
            st.builds(lambda a: ~a, inner),
        ),
        max_leaves=4,
    )


@st.composite
def position_biases(draw: st.DrawFn, heads: int) -> Alibi | RelativeBias:
    """Draw a bias by distance for so many query heads, with distances on both sides of its edge."""
    seed = draw(st.integers(0, 1000))
    source = torch.Generator().manual_seed(seed)
    if draw(st.booleans()):
        usual = draw(st.booleans())
        return Alibi(heads, None if usual else torch.randn(heads, generator=source))
    both = draw(st.booleans())
    buckets, farthest = draw(st.sampled_from([(4, 3), (8, 20), (32, 128)]))
    bias = RelativeBias(heads, buckets, farthest, bidirectional=both)
    with torch.no_grad():
        bias.weight.copy_(torch.randn(buckets, heads, generator=source))
    return bias

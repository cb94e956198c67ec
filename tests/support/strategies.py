"""Generators of calls and patterns for hypothesis."""

import torch
from hypothesis import strategies as st

from headwise.patterns import Pattern, PerHead
from headwise.positions import Alibi, RelativeBias
from tests.support.leaves import KINDS, fits, leaves_of
from tests.support.settings import Setting

SHORT = st.integers(1, 9)
PER_HEAD = "PerHead"
EVERY_KIND = (*KINDS, PER_HEAD)


@st.composite
def settings_of_calls(draw: st.DrawFn, lengths: st.SearchStrategy[int] = SHORT) -> Setting:
    """Draw sizes and offsets, plain ones most of the time."""
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    q_len, kv_len = draw(lengths), draw(lengths)
    each = st.sampled_from([-1, 0, 1]) | st.integers(0, 12) | st.integers(-6, 60)
    many = st.tuples(*[each] * batch)
    q_offset = draw(st.none() | each | many)
    kv_offset = draw(st.just(0) | st.just(0) | each | many)
    return Setting(batch, heads, q_len, kv_len, q_offset, kv_offset)


def settings_for(kind: str, lengths: st.SearchStrategy[int] = SHORT) -> st.SearchStrategy[Setting]:
    """Draw sizes and offsets that patterns of one kind can speak of."""
    return settings_of_calls(lengths).filter(lambda setting: fits(kind, setting))


@st.composite
def _single(draw: st.DrawFn, setting: Setting) -> Pattern:
    return draw(leaves_of(draw(st.sampled_from(_kinds(setting))), setting))


@st.composite
def _per_head(draw: st.DrawFn, setting: Setting) -> Pattern:
    count = draw(st.sampled_from([1, setting.heads]))
    alike = _single(setting).filter(lambda pattern: pattern.num_heads in (None, 1))
    return PerHead([draw(alike) for _ in range(count)])


def kind_of(kind: str, setting: Setting) -> st.SearchStrategy[Pattern]:
    """Draw a pattern of one kind that fits ``setting``; ``PerHead`` holds leaves of any kind."""
    return _per_head(setting) if kind == PER_HEAD else leaves_of(kind, setting)


def leaves(setting: Setting) -> st.SearchStrategy[Pattern]:
    """Draw a pattern that is no combination and fits ``setting``."""
    kinds = [*_kinds(setting), PER_HEAD]
    return st.sampled_from(kinds).flatmap(lambda kind: kind_of(kind, setting))


def _kinds(setting: Setting) -> list[str]:
    return [kind for kind in KINDS if fits(kind, setting)]


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

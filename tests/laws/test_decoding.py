"""Laws of decoding: a whole pass equals a prefill and steps, under every pattern that can grow."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.patterns import (
    Both,
    Dense,
    Either,
    GlobalBlocks,
    KeyMask,
    Not,
    Pattern,
    PerHead,
    RandomBlocks,
    Tiles,
)
from tests.support.budget import assert_within_budget
from tests.support.leaves import flags
from tests.support.oracle import attention, unlucky
from tests.support.paths import LAYERS, Path
from tests.support.settings import Setting
from tests.support.shapes import Inputs, Sizes, inputs
from tests.support.strategies import EVERY_KIND, kind_of, patterns

# Masks and tiles are spelled out for one call.
GROWING = [kind for kind in EVERY_KIND if kind not in ("KeyMask", "Dense", "Tiles")]
PATHS = [Path("reference"), *LAYERS]
few = settings(max_examples=settings().max_examples // 4)


def can_grow(pattern: Pattern) -> bool:
    """Say whether a pattern means the same while the number of keys grows."""
    match pattern:
        case Both(first=a, second=b) | Either(first=a, second=b):
            return can_grow(a) and can_grow(b)
        case Not(inner=a):
            return can_grow(a)
        case PerHead(patterns=parts):
            return all(map(can_grow, parts))
        case GlobalBlocks() | RandomBlocks():
            return pattern.length is not None
    return not isinstance(pattern, Dense | KeyMask | Tiles)


@st.composite
def pieces(draw: st.DrawFn, length: int) -> list[int]:
    """Draw where the pieces of a pass end; single tokens most of the time."""
    ends = [0]
    while ends[-1] < length and len(ends) < 8:
        ends.append(min(length, ends[-1] + draw(st.sampled_from([1, 1, 1, 2, 5, 47, 48, 128]))))
    return [*ends, length] if ends[-1] < length else ends


def stepped(path: Path, given_: Inputs, ends: list[int], patterns_of: Sequence[Pattern]) -> Tensor:
    """Run a pass piece by piece through a cache."""
    found = []
    with path.taken() as backend:
        cache = hw.KVCache() if len(ends) % 2 else hw.KVCache(capacity=given_.key.shape[2])
        for (start, end), pattern in zip(pairwise(ends), patterns_of, strict=True):
            piece = Inputs(*(tensor[:, :, start:end] for tensor in given_))
            found.append(cache.attend(*piece, pattern, backend=backend))
    return torch.cat(found, 2)


def assert_stepped(
    data: st.DataObject,
    setting: Setting,
    whole: Pattern,
    cut: Callable[[int, int], Pattern] | None = None,
) -> None:
    """Compare steps with the whole pass; ``cut`` gives the pattern of one piece."""
    s, ends = setting, data.draw(pieces(setting.kv_len))
    given_ = inputs(Sizes(s.batch, 1, s.heads, s.q_len, s.kv_len, 8, 8))
    visible = whole.dense(s.q_len, s.kv_len)
    exact = attention(*given_, visible)
    plain = unlucky(*given_, visible, exact=exact, dtype=torch.float32)
    steps = [whole if cut is None else cut(start, end) for start, end in pairwise(ends)]
    for path in (PATHS[0], data.draw(st.sampled_from(PATHS[1:]))):
        found = stepped(path, given_, ends, steps)
        label = f"{path} {ends}"
        assert_within_budget(found, exact=exact.output, plain=plain.output, label=label)


def settings_of_passes(data: st.DataObject) -> Setting:
    length = data.draw(st.sampled_from([3, 9, 50, 130]))
    return Setting(data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), length, length, 0)


@pytest.mark.parametrize("kind", GROWING)
@few
@given(data=st.data())
def test_steps_under_every_kind(kind: str, data: st.DataObject) -> None:
    setting = settings_of_passes(data)
    pattern = data.draw(kind_of(kind, setting).filter(can_grow))
    assert_stepped(data, setting, hw.Causal() & pattern)


@few
@given(data=st.data())
def test_steps_under_combinations(data: st.DataObject) -> None:
    setting = settings_of_passes(data)
    pattern = data.draw(patterns(setting).filter(can_grow))
    assert_stepped(data, setting, hw.Causal() & pattern)


@few
@given(data=st.data())
def test_steps_under_masks_cut_to_the_call(data: st.DataObject) -> None:
    setting = settings_of_passes(data)
    length = setting.kv_len
    keys = flags(data.draw(st.integers(0, 99)), setting.batch, length)
    pairs = flags(data.draw(st.integers(0, 99)), length, length).tril()
    assert_stepped(
        data,
        setting,
        hw.KeyMask(keys) & hw.Dense(pairs),
        lambda start, end: hw.KeyMask(keys[:, :end]) & hw.Dense(pairs[start:end, :end]),
    )

"""Generator of whole calls for hypothesis; the sizes to draw from are the test's."""

from math import prod
from typing import NamedTuple

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from headwise.positions import Alibi, RelativeBias
from tests.support.calls import LAYOUTS, laid_out
from tests.support.settings import Setting
from tests.support.shapes import Inputs, Sizes, inputs
from tests.support.strategies import patterns, position_biases
from tests.support.whole_calls import WholeCall

SCALES = (None, None, None, None, 0.0, -0.5, 1.0)
DIMS = (1, 2, 3, 4, 7, 8, 16, 19, 24, 32, 40, 64, 67, 80, 96, 128, 160, 255, 256)
PAIRS = 30_000
NUMBERS = 200

# Each example runs forwards and backwards on every instruction set.
sparing = settings(max_examples=settings().max_examples // 3)


class Lengths(NamedTuple):
    """The numbers of queries and keys to draw from."""

    queries: tuple[int, ...] = (1, 2, 5, 16, 17, 47, 48, 49, 97, 127, 129)
    keys: tuple[int, ...] = (1, 3, 31, 47, 48, 49, 127, 128, 129, 255, 256, 257)


EDGES = Lengths()
FAR_EDGES = Lengths(
    (1, 3, 13, 47, 48, 49, 127, 128, 129, 255, 256, 257, 511, 512, 513),
    (1, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1031, 2049),
)


@st.composite
def whole_calls(
    draw: st.DrawFn, dtype: torch.dtype = torch.float32, lengths: Lengths = EDGES
) -> WholeCall:
    """Draw a call with any arguments together, in any memory layout."""
    s = draw(_sizes(lengths))
    q_len, kv_len = s.q_len, s.kv_len
    each = st.integers(0, 40)
    many = st.lists(each, min_size=s.batch, max_size=s.batch).map(tuple)
    setting = Setting(
        s.batch, s.heads, q_len, kv_len, draw(st.none() | each | many), draw(st.just(0) | many)
    )
    seed = draw(st.integers(0, 10_000))
    source = torch.Generator().manual_seed(seed)
    made = inputs(s, seed=seed, dtype=dtype)
    d_output = torch.randn(s.batch, s.heads, q_len, s.value_dim, generator=source).to(dtype)
    layouts = st.sampled_from(LAYOUTS)
    sinks = torch.randn(s.heads, generator=source)
    return WholeCall(
        Inputs(*(laid_out(tensor, draw(layouts)) for tensor in made)),
        setting,
        draw(st.none() | patterns(setting)),
        draw(_biases(setting, dtype, source)),
        draw(st.sampled_from(SCALES)),
        draw(st.sampled_from([None, None, 0.7, 20.0])),
        sinks if draw(st.booleans()) else None,
        draw(st.sampled_from([0.0, 0.0, 0.0, 0.1, 0.5])),
        seed,
        laid_out(d_output, draw(layouts)),
        torch.randn(s.batch, s.heads, q_len, generator=source) if draw(st.booleans()) else None,
    )


@st.composite
def _sizes(draw: st.DrawFn, lengths: Lengths) -> Sizes:
    """Draw sizes with work in bounds, and with enough numbers in each tensor to judge them by."""
    q_len, kv_len = draw(st.sampled_from(lengths.queries)), draw(st.sampled_from(lengths.keys))
    dim, value_dim = draw(st.sampled_from(DIMS)), draw(st.sampled_from(DIMS))
    batch, kv_heads, group = (draw(st.integers(1, 3)) for _ in range(3))
    while batch * kv_heads * group > max(1, PAIRS // (q_len * kv_len)):
        batch, kv_heads, group = max(batch - 1, 1), max(kv_heads - 1, 1), max(group - 1, 1)
    least = kv_heads * min(q_len, kv_len) * min(dim, value_dim)
    return Sizes(max(batch, -(-NUMBERS // least)), kv_heads, group, q_len, kv_len, dim, value_dim)


@st.composite
def _biases(
    draw: st.DrawFn, setting: Setting, dtype: torch.dtype, source: torch.Generator
) -> Tensor | Alibi | RelativeBias | None:
    kind = draw(st.sampled_from(["none", "tensor", "by distance"]))
    if kind == "none":
        return None
    if kind == "by distance":
        return draw(position_biases(setting.heads))
    shape = (setting.batch, setting.heads, setting.q_len, setting.kv_len)
    kept = draw(st.tuples(*[st.booleans()] * 4))
    rank = draw(st.sampled_from([4, 4, 2, 1, 0]))
    own = tuple(size if keep else 1 for size, keep in zip(shape, kept, strict=True))
    if prod(own[4 - rank :]) < NUMBERS:
        own, rank = shape, 4
    bias = torch.randn(own[4 - rank :], generator=source).to(
        draw(st.sampled_from([torch.float32, dtype]))
    )
    if draw(st.booleans()):
        bias = bias.masked_fill(torch.rand(bias.shape, generator=source) < 0.3, float("-inf"))
    return bias

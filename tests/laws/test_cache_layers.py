"""Laws of layers with a cache: any positions, any kind of cache, any side of the padding."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.nn.schemes import joined_bias, reads_padding
from headwise.patterns import Pattern
from headwise.positions import Rotary
from tests.laws.test_layer import Options, Padded, batches, options
from tests.support.budget import largest_error
from tests.support.cached_passes import KINDS, CacheKind, cache_kinds, ends
from tests.support.schemes import LONGEST, SCHEMES

PATTERNS = (hw.Causal(), hw.Causal() & hw.Window(2, 0))
NEAR = 1e-11
few = settings(max_examples=settings().max_examples // 2)
on_schemes = pytest.mark.parametrize("scheme", SCHEMES)
names = st.sampled_from(KINDS)
patterns = st.sampled_from(PATTERNS)


def made(options: Options, scheme: str, pattern: Pattern) -> hw.MultiHeadAttention:
    """Make a layer in float64; frequencies that depend on the length are those of the longest."""
    layer = options.make(scheme, pattern).double()
    if isinstance(layer.positions, Rotary) and layer.positions.depends_on_length:
        layer.positions = layer.positions.at_length(LONGEST)
    return layer


def whole_pass(layer: hw.MultiHeadAttention, batch: Padded, kind: CacheKind) -> Tensor:
    """Return the pass without a cache over keys and values rounded as it would store them."""
    x = batch.x.double()
    in_front = batch.mask.int().argmax(-1)
    first = -in_front if reads_padding(layer.positions) else 0
    query, key, value = layer.project(x, q_offset=first, kv_offset=first)
    assert layer.pattern is not None
    key, value = (each.to(query.dtype) for each in kind.rounded(key, value))
    context = hw.attend(
        query,
        key,
        value,
        kind.limited(layer.pattern) & hw.KeyMask(batch.mask),
        bias=joined_bias(layer.positions, None),
        softcap=layer.softcap,
        sinks=layer.sinks,
    )
    output: Tensor = layer.W_o(layer.combine_heads(context))
    return output


def in_pieces(
    layer: hw.MultiHeadAttention,
    x: Tensor,
    cache: hw.KVCache,
    places: list[int],
    mask: Tensor | None = None,
) -> Tensor:
    found = [
        layer(x[:, a:b], kv_mask=None if mask is None else mask[:, :b], cache=cache)
        for a, b in pairwise(places)
    ]
    return torch.cat(found, 1)


@on_schemes
@few
@given(names, options, patterns, batches(sides=("left",)), st.data())
@torch.no_grad()
def test_pieces_are_the_whole_pass_and_samples_alone(
    scheme: str,
    name: str,
    options: Options,
    pattern: Pattern,
    batch: Padded,
    data: st.DataObject,
) -> None:
    length = batch.x.shape[1]
    kind = data.draw(cache_kinds(name, length))
    layer = made(options, scheme, pattern)
    places = data.draw(ends(length))
    found = in_pieces(layer, batch.x.double(), kind.make(), places, batch.mask)
    assert largest_error(found[batch.mask], whole_pass(layer, batch, kind)[batch.mask]) < NEAR
    # What is kept for good are the first tokens, padding or not; and padding turns the keys.
    if name == "kept" or kind.dtype is not None:
        return
    for n, sample in enumerate(batch.samples):
        own = data.draw(ends(len(sample)))
        alone = in_pieces(layer, sample[None].double(), kind.make(), own)
        assert largest_error(batch.real(found, n), alone[0]) < NEAR


@on_schemes
@few
@given(names, options, patterns, batches(sides=("right",)), st.integers(1, 3), st.data())
@torch.no_grad()
def test_rows_of_different_lengths_go_on_where_they_are(
    scheme: str,
    name: str,
    options: Options,
    pattern: Pattern,
    batch: Padded,
    steps: int,
    data: st.DataObject,
) -> None:
    """Prompts with the padding behind them are stored without it, then all rows take steps."""
    total = batch.x.shape[1] + steps
    kind = data.draw(cache_kinds(name, total))
    layer = made(options, scheme, pattern)
    lengths = batch.mask.sum(-1)
    cache = kind.make()
    _, key, value = layer.project(batch.x.double())
    cache.append(key, value, layer=cache.slot(layer), q_lengths=lengths)
    new = torch.randn(len(lengths), steps, batch.x.shape[2], dtype=torch.float64)
    found = in_pieces(layer, new, cache, data.draw(ends(steps)))
    for n, sample in enumerate(batch.samples):
        whole = torch.cat([sample.double(), new[n]])[None]
        alone = in_pieces(layer, whole, kind.make(), data.draw(ends(whole.shape[1])))
        assert largest_error(found[n], alone[0, -steps:]) < NEAR
    assert cache.lengths().tolist() == (lengths + steps).tolist()

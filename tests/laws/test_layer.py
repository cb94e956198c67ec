"""Laws of the layer: padding, batch mates and caches change nothing, whatever the positions."""

from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.nn.schemes import joined_bias
from tests.support.budget import assert_within_budget, largest_error
from tests.support.schemes import BY_LENGTH, SCHEMES

WIDTH, HEADS, DIM = 24, 4, 8
PATTERNS = [None, hw.Causal(), hw.Causal() & hw.Window(2, 0), hw.Window(1, 2)]
few = settings(max_examples=settings().max_examples // 4)
on_schemes = pytest.mark.parametrize("scheme", SCHEMES)


class Options(NamedTuple):
    """What a drawn layer is like besides its positions."""

    kv_heads: int
    value_dim: int
    qk_norm: bool
    softcap: float | None
    sinks: bool

    def make(self, scheme: str, pattern: hw.patterns.Pattern | None) -> hw.MultiHeadAttention:
        """Make the layer, all its parameters drawn."""
        layer = hw.MultiHeadAttention(
            WIDTH,
            HEADS,
            num_kv_heads=self.kv_heads,
            head_dim=DIM,
            value_dim=self.value_dim,
            pattern=pattern,
            positions=SCHEMES[scheme](WIDTH, HEADS, DIM),
            qk_norm=self.qk_norm,
            softcap=self.softcap,
            sinks=self.sinks,
        )
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        return layer

    def pair(
        self, scheme: str, pattern: hw.patterns.Pattern | None
    ) -> tuple[hw.MultiHeadAttention, hw.MultiHeadAttention]:
        """Make the layer, and the same in float64."""
        layer = self.make(scheme, pattern)
        exact = self.make(scheme, pattern).double()
        exact.load_state_dict({name: each.double() for name, each in layer.state_dict().items()})
        return layer, exact


options = st.builds(
    Options,
    st.sampled_from([1, 2, 4]),
    st.sampled_from([DIM, 5]),
    st.booleans(),
    st.sampled_from([None, 3.0]),
    st.booleans(),
)


class Padded(NamedTuple):
    """Samples of drawn lengths, padded on drawn sides with numbers that must not matter."""

    x: Tensor
    mask: Tensor
    samples: list[Tensor]

    def real(self, output: Tensor, sample: int) -> Tensor:
        """Return the output at the real tokens of one sample."""
        return output[sample][self.mask[sample]]


@st.composite
def batches(draw: st.DrawFn, sides: tuple[str, ...] = ("left", "right")) -> Padded:
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    total = max(lengths) + draw(st.integers(0, 2))
    torch.manual_seed(draw(st.integers(0, 999)))
    x = 50 * torch.randn(len(lengths), total, WIDTH)
    mask = torch.zeros(len(lengths), total, dtype=torch.bool)
    for n, length in enumerate(lengths):
        side = draw(st.sampled_from(sides))
        first = 0 if side == "right" else total - length
        mask[n, first : first + length] = True
        x[n, first : first + length] = torch.randn(length, WIDTH)
    return Padded(x, mask, [x[n][mask[n]] for n in range(len(lengths))])


@on_schemes
@few
@given(options, st.sampled_from(PATTERNS), batches())
def test_padding_and_batch_mates_change_nothing(
    scheme: str, options: Options, pattern: hw.patterns.Pattern | None, batch: Padded
) -> None:
    layer, exact = options.pair(scheme, pattern)
    with torch.no_grad():
        together = layer(batch.x, kv_mask=batch.mask)
        exactly = exact(batch.x.double(), kv_mask=batch.mask)
        alone = torch.cat([layer(sample[None])[0] for sample in batch.samples])
        wanted = torch.cat([exact(sample[None].double())[0] for sample in batch.samples])
    assert largest_error(exactly[batch.mask], wanted) < 1e-11
    assert_within_budget(together[batch.mask], exact=wanted, plain=alone, label=scheme)


@on_schemes
@few
@given(options, st.sampled_from(PATTERNS), batches())
def test_gradients_of_a_batch_are_those_of_its_samples(
    scheme: str, options: Options, pattern: hw.patterns.Pattern | None, batch: Padded
) -> None:
    layer = options.make(scheme, pattern).double()
    inputs = batch.x.double().requires_grad_()
    together = layer(inputs, kv_mask=batch.mask)
    weights = torch.randn_like(together)
    (together * weights)[batch.mask].sum().backward()
    assert inputs.grad is not None
    found = [parameter.grad for parameter in layer.parameters()]
    layer.zero_grad()
    for n, sample in enumerate(batch.samples):
        alone = sample[None].double().requires_grad_()
        (layer(alone)[0] * batch.real(weights, n)).sum().backward()
        assert alone.grad is not None
        assert largest_error(batch.real(inputs.grad, n), alone.grad[0]) < 1e-9
    for one, all_of_them in zip(layer.parameters(), found, strict=True):
        if one.grad is not None or all_of_them is not None:
            assert one.grad is not None
            assert all_of_them is not None
            assert largest_error(all_of_them, one.grad) < 1e-9


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name not in BY_LENGTH])
@few
@given(
    options,
    st.sampled_from([hw.Causal(), hw.Causal() & hw.Window(2, 0)]),
    batches(sides=("left",)),
    st.lists(st.integers(1, 4), max_size=3),
    st.sampled_from([None, 16]),
)
def test_a_cache_gives_the_whole_pass(
    scheme: str,
    options: Options,
    pattern: hw.patterns.Pattern,
    batch: Padded,
    pieces: list[int],
    capacity: int | None,
) -> None:
    layer, exact = options.pair(scheme, pattern)
    total = batch.x.shape[1]
    ends = [0]
    while ends[-1] < total:
        ends.append(min(total, ends[-1] + (pieces.pop() if pieces else 1)))
    cache = hw.KVCache(capacity=capacity)
    with torch.no_grad():
        steps = [
            layer(batch.x[:, a:b], kv_mask=batch.mask[:, :b], cache=cache)
            for a, b in pairwise(ends)
        ]
        whole = layer(batch.x, kv_mask=batch.mask)
        exactly = exact(batch.x.double(), kv_mask=batch.mask)
    assert_within_budget(
        torch.cat(steps, 1)[batch.mask],
        exact=exactly[batch.mask],
        plain=whole[batch.mask],
        label="steps",
    )


@on_schemes
@few
@given(options, st.integers(-5, 40), st.integers(1, 7), st.integers(0, 999))
def test_forward_is_project_then_attend(
    scheme: str, options: Options, offset: int, length: int, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = options.make(scheme, hw.Causal()).double()
    x = torch.randn(2, length, WIDTH, dtype=torch.float64)
    if scheme == "learned":
        offset = abs(offset)
    bias = joined_bias(layer.positions, None)
    with torch.no_grad():
        q, k, v = layer.project(x, q_offset=offset)
        context = hw.attend(
            q, k, v, hw.Causal(), bias=bias, softcap=options.softcap, sinks=layer.sinks
        )
        wanted = layer.W_o(layer.combine_heads(context))
        assert largest_error(layer(x, q_offset=offset), wanted) < 1e-12
        rows = torch.full((2,), offset)
        assert largest_error(layer(x, q_offset=rows), wanted) < 1e-11

"""performer-pytorch from its own projection, and where it computes something else.

Its features have a constant added, ``eps``. In float64 the rest of the difference is rounding, so
the tolerances below are what the constants can do, derived in ``moved_by_eps``, and no more.
"""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.nn import RandomFeatures
from tests.support.budget import assert_same_bits

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it reads torch's version by a module that Python has dropped
    from performer_pytorch import performer_pytorch as foreign  # type: ignore[import-untyped]

DIM, COUNT = 8, 24
FEATURE_EPS, SUM_EPS = 1e-4, 1e-6
ROUNDING = 1e-12


def tokens(*, length: int = 13, seed: int = 0) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(seed)
    drawn = torch.randn(3, 2, 3, length, DIM, generator=source, dtype=torch.float64)
    return 0.5 * drawn[0], 0.5 * drawn[1], drawn[2]


def theirs(**named: Any) -> Any:
    """Return their attention; a causal one prints that it has no kernel for GPUs."""
    return foreign.FastAttention(DIM, COUNT, **named)


def ours(theirs: Any, **named: Any) -> RandomFeatures:
    made = RandomFeatures(COUNT, DIM, **named)
    made.load_state_dict({"projection": theirs.projection_matrix, "seed": torch.tensor(0)})
    return made


def moved_by_eps(made: RandomFeatures, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return how far their constants can move each output, (batch, heads, q_len, 1).

    With ``a`` and ``b`` the features of a query and a key over their largest exponentials, they
    weigh by ``(a + eps) @ (b + eps) = a @ b + eps * (sum(a) + sum(b)) + count * eps²``. So their
    output is ``(S * right + T * mean) / (S + T)``, where ``S`` is the sum of the right weights of
    the row, ``T`` that of the other terms, and ``mean`` some weighted mean of values: it is off by
    ``T / (S + T)`` times the distance of two values at most. A constant in the divisor, as their
    causal form has, shrinks it further, by ``sum_eps * sqrt(count) * sum(a + eps)`` over the
    divisor, which is at least the weight of the first key.
    """
    shrink = DIM**-0.25
    directions = made.projection
    assert directions is not None
    q, k = (shrink * x @ directions.T.double() for x in (query, key))
    lost = [shrink**2 * x.square().sum(-1, keepdim=True) / 2 for x in (query, key)]
    a = (q - lost[0] - q.amax(-1, keepdim=True)).exp()
    b = (k - lost[1] - k.amax((-1, -2), keepdim=True)).exp()
    right = a @ b.mT
    other = FEATURE_EPS * (a.sum(-1)[..., None] + b.sum(-1)[..., None, :]) + COUNT * FEATURE_EPS**2
    # The largest of all causal rows, whichever of them this is.
    most = other.cumsum(-1)
    share = (most / (right.cumsum(-1) + most)).amax(-1, keepdim=True)
    shrunk = SUM_EPS * COUNT**0.5 * (a + FEATURE_EPS).sum(-1, keepdim=True) / right[..., :1]
    apart = value.amax(-2, keepdim=True) - value.amin(-2, keepdim=True)
    moved: Tensor = share * apart + shrunk * value.abs().amax()
    return moved


@pytest.mark.parametrize("eps", [0.0, FEATURE_EPS])
def test_features_without_the_constant(eps: float) -> None:
    """Their features are ours but for the factors of rows, and for the constant."""
    query, key, _ = tokens()
    other = theirs()
    made = ours(other)
    for x, is_query in ((query, True), (key, False)):
        found = foreign.softmax_kernel(
            x, projection_matrix=other.projection_matrix, is_query=is_query, eps=eps
        )
        along = DIM**-0.25 * x @ other.projection_matrix.T.double()
        peak = along.amax((-1,) if is_query else (-1, -2), keepdim=True)
        torch.testing.assert_close(found - eps * COUNT**-0.5, made(x) * (-peak).exp())


@pytest.mark.parametrize("causal", [False, True])
def test_attention_without_the_constant(causal: bool) -> None:
    query, key, value = tokens()
    other = theirs()
    features = [
        foreign.softmax_kernel(
            x, projection_matrix=other.projection_matrix, is_query=is_query, eps=0.0
        )
        for x, is_query in ((query, True), (key, False))
    ]
    found = hw.linear_attend(query, key, value, feature_map=ours(other), causal=causal).output
    if causal:
        wanted = foreign.causal_linear_attention_noncuda(*features, value, eps=0.0)
    else:
        wanted = foreign.linear_attention(*features, value)
    torch.testing.assert_close(found, wanted, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    given = tokens()
    other = theirs(causal=causal)
    made = ours(other)
    found = hw.linear_attend(*given, feature_map=made, causal=causal).output
    allowed = moved_by_eps(made, *given) + ROUNDING
    assert allowed.max() < 0.2, "the tolerance would hide what is tested"
    assert ((found - other(*given)).abs() <= allowed).all()


@pytest.mark.parametrize("causal", [False, True])
def test_generalised_attention(causal: bool) -> None:
    """Its constant is part of the map here, too, so only that of the causal divisor is left."""
    query, key, value = tokens()
    other = theirs(causal=causal, generalized_attention=True)
    made = ours(other, kernel="relu")
    found = hw.linear_attend(query, key, value, feature_map=made, causal=causal).output
    a, b = (COUNT**0.5 * made(x) for x in (query, key))
    shrunk = SUM_EPS * a.sum(-1, keepdim=True) / (a * b[..., :1, :]).sum(-1, keepdim=True)
    allowed = shrunk * value.abs().amax() * causal + ROUNDING
    assert ((found - other(query, key, value)).abs() <= allowed).all()


def test_a_layer_from_its_weights() -> None:
    """Only biases in all four projections have a place in both."""
    other = foreign.SelfAttention(24, heads=3, dim_head=DIM, nb_features=COUNT, qkv_bias=True)
    other = other.double()
    made = ours(other.fast_attention)
    layer = hw.MultiHeadAttention(24, 3, mechanism=made).double()
    names = {"W_q": "to_q", "W_k": "to_k", "W_v": "to_v", "W_o": "to_out"}
    for mine, its in names.items():
        getattr(layer, mine).load_state_dict(getattr(other, its).state_dict())
    x = torch.randn(2, 13, 24, dtype=torch.float64)
    with torch.no_grad():
        moved = layer.combine_heads(moved_by_eps(made, *layer.project(x)).expand(-1, -1, -1, DIM))
        allowed = moved @ layer.W_o.weight.abs().T + ROUNDING
        assert ((layer(x) - other(x)).abs() <= allowed).all()


def test_their_scale_is_set_by_the_future() -> None:
    """One large token at the end, and what they say of the first ones is the constant's alone."""
    query, key, value = tokens()
    other = theirs(causal=True)
    made = ours(other)
    later = key.clone()
    later[:, :, -1] *= 30
    before, after = other(query, key, value)[:, :, :-1], other(query, later, value)[:, :, :-1]
    assert (after - before).abs().max() > 0.1
    # Nothing is left but the mean of the values up to each token.
    counts = torch.arange(1, 14, dtype=torch.float64)[:, None]
    means = (value.cumsum(-2) / counts)[:, :, :-1]
    assert (after - means).abs().mean() < 0.1 * (before - means).abs().mean()
    found = [
        hw.linear_attend(query, each, value, feature_map=made, causal=True).output[:, :, :-1]
        for each in (key, later)
    ]
    assert_same_bits(found[1], found[0])


def test_their_padding_stays_in_the_divisor() -> None:
    """They set padded values to 0 and leave the keys, which take their share of the weights."""
    width, real = 24, 5
    other = foreign.SelfAttention(width, heads=3, dim_head=DIM, nb_features=COUNT, qkv_bias=True)
    with torch.no_grad():
        other.to_v.weight.zero_()
        other.to_v.bias.fill_(1.0)
        other.to_out.weight.copy_(torch.eye(width))
        other.to_out.bias.zero_()
    layer = hw.MultiHeadAttention(width, 3, mechanism=ours(other.fast_attention))
    for mine, its in {"W_q": "to_q", "W_k": "to_k", "W_v": "to_v", "W_o": "to_out"}.items():
        getattr(layer, mine).load_state_dict(getattr(other, its).state_dict())
    x = torch.randn(2, 13, width)
    mask = (torch.arange(13) < real).expand(2, -1)
    with torch.no_grad():
        assert (other(x.clone(), mask=mask) < 0.8).all()
        # Values of ones are their own mean.
        torch.testing.assert_close(layer(x, kv_mask=mask), torch.ones(2, 13, width))


def test_their_padding_sets_the_scale() -> None:
    query, key, value = tokens()
    other = theirs()
    padded = key.clone()
    padded[:, :, 5:] *= 30
    mask = (torch.arange(13) < 5).expand(2, -1)
    left = value.masked_fill(~mask[:, None, :, None], 0.0)
    assert (other(query, padded, left) - other(query, key, left)).abs().max() > 0.1
    found = [
        hw.linear_attend(query, each, value, feature_map=ours(other), kv_mask=mask).output
        for each in (key, padded)
    ]
    assert_same_bits(found[1], found[0])

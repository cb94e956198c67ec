"""What random features promise on average, and for every draw. Seeds are fixed."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.nn import RandomFeatures
from headwise.ops.linear.directions import draw_directions
from tests.support.budget import assert_same_bits

DIM = 8
BOTH = pytest.mark.parametrize("orthogonal", [True, False])
KERNELS = pytest.mark.parametrize("kernel", ["softmax", "hyperbolic", "relu"])

# An average over seeds is taken to be right within so many of its standard errors.
ERRORS = 5.0


def tokens(count: int, *, seed: int) -> Tensor:
    """Draw tokens so short that squared errors have no long tail, which few draws would miss."""
    source = torch.Generator().manual_seed(seed)
    return 0.25 * torch.randn(count, DIM, generator=source, dtype=torch.float64)


QUERY, KEY = tokens(5, seed=1), tokens(7, seed=2)


def estimates(count: int, draws: int, **options: Any) -> Tensor:
    """Return what each of many draws estimates, (draws, queries, keys).

    One object holds them all, for blocks of directions are drawn apart from each other.
    """
    made = RandomFeatures(count * draws, DIM, **options)
    parts = 2 if made.kernel == "hyperbolic" else 1
    query, key = (made(x).unflatten(-1, (parts, draws, count // parts)) for x in (QUERY, KEY))
    return torch.einsum("qpnf,kpnf->nqk", query, key) * draws


def assert_mean(samples: Tensor, expected: Tensor) -> None:
    error = samples.std(0) / math.sqrt(len(samples))
    apart = (samples.mean(0) - expected).abs() / error
    assert apart.max() < ERRORS, f"{apart.max():.1f} standard errors"


def scores(scale: float = DIM**-0.5) -> Tensor:
    return scale * QUERY @ KEY.T


@BOTH
@pytest.mark.parametrize("kernel", ["softmax", "hyperbolic"])
def test_products_are_softmax_weights_on_average(kernel: str, orthogonal: bool) -> None:
    found = estimates(2 * DIM, 2000, kernel=kernel, orthogonal=orthogonal)
    assert_mean(found, scores().exp())


@pytest.mark.parametrize("count", [1, DIM - 2, 2 * DIM + 4])
def test_no_count_needs_whole_blocks(count: int) -> None:
    maps = [RandomFeatures(count, DIM, seed=seed) for seed in range(200)]
    assert_mean(torch.stack([each(QUERY) @ each(KEY).T for each in maps]), scores().exp())


@pytest.mark.parametrize("scale", [0.1, 0.7])
def test_the_scale_is_that_of_the_scores(scale: float) -> None:
    assert_mean(estimates(DIM, 2000, scale=scale), scores(scale).exp())


def test_a_scale_of_0_is_exact() -> None:
    (found,) = estimates(16, 1, scale=0.0)
    torch.testing.assert_close(found, torch.ones(5, 7, dtype=torch.float64))


@BOTH
def test_products_of_relu_features_are_the_arc_cosine_kernel_on_average(orthogonal: bool) -> None:
    """E[relu(w q) relu(w k)] of order 1 (Cho and Saul, 2009), and the constant of each feature."""
    found = estimates(DIM, 2000, kernel="relu", orthogonal=orthogonal)
    shrink, floor = DIM**-0.25, 1e-3
    q, k = shrink * QUERY.norm(dim=-1)[:, None], shrink * KEY.norm(dim=-1)
    angle = (scores() / (q * k)).acos()
    kernel = q * k * (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi)
    assert_mean(found, kernel + floor * (q + k) / math.sqrt(2 * math.pi) + floor**2)


def squared_errors(count: int, orthogonal: bool) -> Tensor:
    return (estimates(count, 5000, orthogonal=orthogonal) - scores().exp()).square()


@pytest.mark.parametrize("count", [4, 16, 64])
def test_variance_falls_with_the_count(count: int) -> None:
    """Lemma 2 of the paper, for directions drawn apart."""
    shrink = DIM**-0.25
    together = shrink * (QUERY[:, None] + KEY)
    variance = (2 * scores()).exp() * together.square().sum(-1).expm1() / count
    assert_mean(squared_errors(count, orthogonal=False), variance)


def test_directions_at_right_angles_have_a_smaller_error() -> None:
    """Theorem 2 of the paper: by how much, at least, in a block of ``head_dim`` directions."""
    apart, angled = (squared_errors(DIM, orthogonal) for orthogonal in (False, True))
    sizes = (QUERY.square().sum(-1)[:, None] + KEY.square().sum(-1)) * DIM**-0.5
    least = (scores().exp() - (-sizes / 2).exp()).square() * 2 * (DIM - 1) / (DIM * (DIM + 2))
    gained = apart.mean(0) - angled.mean(0)
    error = ((apart.var(0) + angled.var(0)) / len(apart)).sqrt()
    assert (gained > least - ERRORS * error).all()
    assert gained.mean() > 0


@BOTH
def test_opposite_tokens_are_exact_in_every_draw(orthogonal: bool) -> None:
    made = RandomFeatures(16, DIM, orthogonal=orthogonal)
    found = (made(QUERY) * made(-QUERY)).sum(-1)
    exact = (-(DIM**-0.5) * QUERY.square().sum(-1)).exp()
    torch.testing.assert_close(found, exact)


@BOTH
def test_directions_are_normal_each_for_itself(orthogonal: bool) -> None:
    drawn = draw_directions(3 * 5000, 3, seed=0, orthogonal=orthogonal).double().view(-1, 3, 3)
    ones, zeros = torch.ones(3, 3).double(), torch.zeros(3, 3).double()
    assert_mean(drawn, zeros)
    assert_mean(drawn.square(), ones)
    assert_mean(drawn**4, 3 * ones)
    assert_mean(drawn * drawn.roll(1, -1), zeros)
    assert_mean(drawn.square() * drawn.roll(1, -1).square(), ones)


def test_blocks_are_at_right_angles() -> None:
    drawn = draw_directions(19, DIM, seed=3, orthogonal=True).double()
    for block in torch.split(drawn, DIM):
        gram = block @ block.T
        lengths = block.norm(dim=-1)
        cosines = gram / lengths[:, None] / lengths
        # Each number was rounded to float32 once.
        atol = 4 * torch.finfo(torch.float32).eps
        torch.testing.assert_close(cosines, torch.eye(len(block)).double(), rtol=0, atol=atol)


@KERNELS
def test_gains_and_values_are_the_features(kernel: str) -> None:
    made = RandomFeatures(10, DIM, kernel=kernel)
    plain = made(KEY)
    found = made.features(KEY, is_query=False, normalize=True)
    gain = torch.zeros(7).double() if found.log_gain is None else found.log_gain
    torch.testing.assert_close(found.values * gain.exp()[:, None], plain)
    asked = made.features(QUERY, is_query=True, normalize=True)
    assert asked.log_gain is None
    factor = asked.values / made(QUERY)
    torch.testing.assert_close(factor, factor[:, :1].expand_as(factor))
    assert (found.values >= 0).all()
    assert (asked.values >= 0).all()
    assert kernel == "relu" or (found.values.amax(-1) == 1).all()


@KERNELS
def test_the_whole_gradient_is_in_the_values(kernel: str) -> None:
    made = RandomFeatures(10, DIM, kernel=kernel)
    key, upstream = KEY.clone().requires_grad_(), torch.randn(7, 10).double()
    found = made.features(key, is_query=False, normalize=True)
    assert found.log_gain is None or not found.log_gain.requires_grad
    gain = torch.ones(7, 1).double() if found.log_gain is None else found.log_gain.exp()[:, None]
    gradients = [
        torch.autograd.grad((output * upstream).sum(), key, create_graph=True)[0]
        for output in (found.values * gain, made(key))
    ]
    torch.testing.assert_close(*gradients)
    second = [torch.autograd.grad(each.square().sum(), key)[0] for each in gradients]
    torch.testing.assert_close(*second)


@KERNELS
@pytest.mark.parametrize("is_query", [True, False])
def test_a_token_has_its_features_whoever_else_is_there(kernel: str, is_query: bool) -> None:
    """Neither the future, nor other heads or samples, nor padding sets a scale."""
    made = RandomFeatures(10, DIM, kernel=kernel)
    x = torch.randn(2, 3, 5, DIM)
    before = made.features(x, is_query=is_query, normalize=True)
    for place in ((1,), (0, 1), (0, 0, slice(2, None))):
        other = x.clone()
        other[place] = 1e4
        after = made.features(other, is_query=is_query, normalize=True)
        assert_same_bits(after.values[0, 0, :2], before.values[0, 0, :2])
        if before.log_gain is not None and after.log_gain is not None:
            assert_same_bits(after.log_gain[0, 0, :2], before.log_gain[0, 0, :2])


@KERNELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [0.0, 100.0, 1000.0])
def test_huge_inputs_stay_finite(kernel: str, dtype: torch.dtype, size: float) -> None:
    made = RandomFeatures(16, DIM, kernel=kernel)
    x = (size * torch.randn(2, 3, 5, DIM)).to(dtype).requires_grad_()
    for is_query in (True, False):
        found = made.features(x, is_query=is_query, normalize=True)
        assert found.values.dtype == dtype
        assert found.values.isfinite().all()
        if found.log_gain is not None:
            assert found.log_gain.dtype == torch.float32
            assert found.log_gain.isfinite().all()
        (gradient,) = torch.autograd.grad(found.values.float().sum(), x)
        assert gradient.isfinite().all()

"""Linear attention over random features: what holds for every draw, every input and every form."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.nn import RandomFeatures
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.shapes import Inputs, Sizes, inputs

KERNELS = ["softmax", "hyperbolic", "relu"]
on_kernels = pytest.mark.parametrize("kernel", KERNELS)
on_forms = pytest.mark.parametrize("backend", ["auto", "chunked", "recurrent", "reference"])
SIZES = Sizes(2, 3, 2, 11, 11, 7, 5)


def attended(drawn: Inputs, made: RandomFeatures, **named: Any) -> Tensor:
    return hw.linear_attend(*drawn, feature_map=made, **named).output


@given(
    kernel=st.sampled_from(KERNELS),
    seed=st.integers(0, 99),
    causal=st.booleans(),
    spread=st.sampled_from([0.1, 1.0, 2.0]),
    lengths=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_outputs_lie_among_the_values(
    kernel: str, seed: int, causal: bool, spread: float, lengths: tuple[int, int]
) -> None:
    sizes = Sizes(2, 3, 2, min(lengths), max(lengths), 7, 5)
    drawn = inputs(sizes, seed=seed, dtype=torch.float64, spread=spread)
    made = RandomFeatures(12, 7, seed=seed, kernel=kernel)
    found = attended(drawn, made, causal=causal)
    lowest, highest = (
        bound.values.repeat_interleave(2, 1).unsqueeze(2)
        for bound in (drawn.value.min(2), drawn.value.max(2))
    )
    rounding = 1e-12 * spread
    assert (found >= lowest - rounding).all()
    assert (found <= highest + rounding).all()
    ones = attended(drawn._replace(value=torch.ones_like(drawn.value)), made, causal=causal)
    torch.testing.assert_close(ones, torch.ones_like(ones))
    weights = hw.linear_attention_weights(drawn.query, drawn.key, feature_map=made, causal=causal)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    values = drawn.value.repeat_interleave(2, 1)
    torch.testing.assert_close(weights @ values, found)


@on_kernels
@on_forms
@pytest.mark.parametrize("causal", [False, True])
def test_every_form_weighs_by_the_plain_features(kernel: str, backend: str, causal: bool) -> None:
    drawn = inputs(SIZES, dtype=torch.float64)
    made = RandomFeatures(12, 7, kernel=kernel)
    query, key = made(drawn.query), made(drawn.key).repeat_interleave(2, 1)
    weights = query @ key.mT
    weights = weights.tril() if causal else weights
    wanted = weights / weights.sum(-1, keepdim=True) @ drawn.value.repeat_interleave(2, 1)
    found = attended(drawn, made, causal=causal, backend=backend)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


@on_kernels
@pytest.mark.parametrize("causal", [False, True])
def test_gradients(kernel: str, causal: bool) -> None:
    drawn = inputs(Sizes(1, 1, 2, 4, 4, 3, 2), dtype=torch.float64)
    made = RandomFeatures(6, 3, kernel=kernel)

    def run(*each: Tensor) -> Tensor:
        return attended(Inputs(*each), made, causal=causal)

    wanting = [each.requires_grad_() for each in drawn]
    assert torch.autograd.gradcheck(run, wanting)
    assert torch.autograd.gradgradcheck(run, wanting)


@on_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_within_the_budget(kernel: str, dtype: torch.dtype) -> None:
    drawn = inputs(SIZES, dtype=dtype)
    made = RandomFeatures(16, 7, kernel=kernel)

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        features: list[Tensor] = [made(query), made(key).repeat_interleave(2, 1)]
        weights = features[0] @ features[1].mT
        return weights / weights.sum(-1, keepdim=True) @ value.repeat_interleave(2, 1)

    exact = plain(*(each.double() for each in drawn))
    assert_within_budget(attended(drawn, made), exact=exact, plain=plain(*drawn), label=kernel)


@on_kernels
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_huge_inputs_stay_finite(kernel: str, causal: bool, dtype: torch.dtype) -> None:
    """``|x|`` of some hundreds: plain features are 0 or infinite there."""
    drawn = inputs(SIZES, spread=100.0)
    drawn = Inputs(*(each.to(dtype).requires_grad_() for each in (*drawn[:2], drawn.value / 100)))
    made = RandomFeatures(16, 7, kernel=kernel)
    found = attended(drawn, made, causal=causal)
    assert found.isfinite().all()
    gradients = torch.autograd.grad(found.float().square().sum(), drawn)
    assert all(gradient.isfinite().all() for gradient in gradients)
    ones = attended(drawn._replace(value=torch.ones_like(drawn.value)), made, causal=causal)
    torch.testing.assert_close(ones, torch.ones_like(ones))


def test_a_query_alone_with_a_huge_key_gets_its_value() -> None:
    """With one key the weight is 1, whatever it is before the division."""
    drawn = inputs(Sizes(1, 1, 1, 1, 1, 7, 5), spread=50.0)
    made = RandomFeatures(16, 7)
    same = drawn._replace(query=drawn.key)
    torch.testing.assert_close(attended(same, made), drawn.value)


@on_kernels
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1e4])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_stays_out(kernel: str, odd: float, causal: bool) -> None:
    drawn = inputs(SIZES)
    made = RandomFeatures(12, 7, kernel=kernel)
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[0, 8:] = False
    mask[1, :3] = False
    found = []
    for filler in (0.0, odd):
        each = [
            drawn.query.clone(),
            *(x.masked_fill(~mask[:, None, :, None], filler) for x in drawn[1:]),
        ]
        wanting = [x.requires_grad_() for x in each]
        output = attended(Inputs(*wanting), made, causal=causal, kv_mask=mask)
        upstream = torch.linspace(-1, 1, output.numel()).view_as(output)
        found.append([output, *torch.autograd.grad((output * upstream).sum(), wanting)])
    for with_zeros, with_odd in zip(*found, strict=True):
        assert_same_bits(with_odd, with_zeros)


@on_kernels
def test_neither_the_future_nor_other_samples_are_looked_at(kernel: str) -> None:
    drawn = inputs(SIZES)
    made = RandomFeatures(12, 7, kernel=kernel)
    before = attended(drawn, made, causal=True)
    key = drawn.key.clone()
    key[1] *= 100
    key[0, :, 6:] *= 100
    after = attended(drawn._replace(key=key), made, causal=True)
    assert_same_bits(after[0, :, :6], before[0, :, :6])


@on_kernels
@pytest.mark.parametrize("cut", [1, 4, 10])
def test_a_state_is_carried_past_keys_of_any_size(kernel: str, cut: int) -> None:
    """Scales of earlier tokens and of later ones meet, in either order."""
    drawn = inputs(SIZES, dtype=torch.float64)
    made = RandomFeatures(12, 7, kernel=kernel)
    for grown in (slice(0, cut), slice(cut, None)):
        key = drawn.key.clone()
        key[:, :, grown] *= 20
        whole = Inputs(drawn.query, key, drawn.value)
        wanted = attended(whole, made, causal=True)
        first = hw.linear_attend(*(x[:, :, :cut] for x in whole), feature_map=made, causal=True)
        then = hw.linear_attend(
            *(x[:, :, cut:] for x in whole), feature_map=made, causal=True, state=first.state
        )
        found = torch.cat([first.output, then.output], 2)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)

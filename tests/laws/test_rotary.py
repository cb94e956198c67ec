"""Laws of turning: only distances count, however far out, and a turn is linear and undone."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.autograd.functional import jacobian
from torch.func import grad, jvp, vmap

import headwise as hw
from headwise.positions import Rotary
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.rotary import scalings, turned

# Forward mode brings parts of torch that warn when they are first used.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

FORMS: list[dict[str, Any]] = [{}, {"interleaved": True}, {"rotary_dim": 4}]
on_forms = pytest.mark.parametrize("form", FORMS, ids=str)
FAR = st.integers(-100, 100) | st.integers(0, 1_000_000) | st.integers(0, 1 << 40)


@given(
    drawn=scalings(),
    query_at=FAR,
    distance=st.integers(-300, 300),
    moved=FAR,
    seed=st.integers(0, 99),
)
def test_only_the_distance_counts(
    drawn: tuple[Rotary, dict[str, Any]], query_at: int, distance: int, moved: int, seed: int
) -> None:
    """Scores of float64 stay the same when both are moved, to the rounding of the angles."""
    rotary = drawn[0].at_length(300)
    source = torch.Generator().manual_seed(seed)
    shape = (2, 1, 1, 1, rotary.head_dim)
    query, key = torch.randn(shape, generator=source, dtype=torch.float64)

    def score(at: int) -> Tensor:
        found: Tensor = (rotary(query, at) * rotary(key, at - distance)).sum()
        return found

    near = score(distance)
    size = rotary.attention_factor**2 * query.norm() * key.norm()
    # An angle is a product rounded to 53 bits, and is as large as the position at most.
    angle = 4 * 2.0**-53 * (abs(query_at) + abs(moved) + 300) + 64 * 2.0**-53
    assert (score(query_at) - near).abs() <= size * angle
    assert (score(moved) - near).abs() <= size * angle


@on_forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_million_tokens_out_nothing_is_less_accurate(
    form: dict[str, Any], dtype: torch.dtype
) -> None:
    rotary = Rotary(8, **form)
    query = torch.randn(2, 3, 5, 8).to(dtype)
    far = (1_000_000 + torch.arange(5)).expand(2, -1)
    exact = turned(query, far, rotary)
    near = turned(query, far - 1_000_000, rotary)
    plain = rotary(query, 0) - near.to(dtype) + exact.to(dtype)
    assert_within_budget(rotary(query, 1_000_000), exact=exact, plain=plain, label=f"{dtype}")
    offsets = torch.tensor([1_000_000, 1_000_000])
    assert_within_budget(rotary(query, offsets), exact=exact, plain=plain, label=f"{dtype}")


@given(drawn=scalings(), offset=FAR, seed=st.integers(0, 99))
def test_lengths_of_rows_stay(drawn: tuple[Rotary, dict[str, Any]], offset: int, seed: int) -> None:
    rotary, width = drawn[0], drawn[0].rotary_dim
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 2, 3, rotary.head_dim, generator=source, dtype=torch.float64)
    found = rotary(x, offset)
    wanted = rotary.attention_factor * x[..., :width].norm(dim=-1)
    torch.testing.assert_close(found[..., :width].norm(dim=-1), wanted)
    assert_same_bits(found[..., width:], x[..., width:])


@given(drawn=scalings(), offset=st.integers(-50, 500), seed=st.integers(0, 99))
def test_the_gradient_is_the_turn_backwards(
    drawn: tuple[Rotary, dict[str, Any]], offset: int, seed: int
) -> None:
    """Turned by the gradient and turned again, a row comes back times the factor squared."""
    rotary = drawn[0].at_length(10)
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 2, 3, rotary.head_dim, generator=source, dtype=torch.float64)
    x.requires_grad_()
    found = rotary(x, offset)
    (back,) = torch.autograd.grad(found, x, found)
    sizes = torch.ones(rotary.head_dim, dtype=torch.float64)
    sizes[: rotary.rotary_dim] = rotary.attention_factor**2
    torch.testing.assert_close(back, x * sizes)


@pytest.fixture(params=[0, 1 << 40], ids=["in place", "with a temporary"])
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.positions.rotation._MANY", request.param)


@on_forms
@pytest.mark.usefixtures("_either_way")
def test_derivatives(form: dict[str, Any]) -> None:
    rotary = Rotary(6, **form)
    x = torch.randn(2, 1, 3, 6, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([2, -1])

    def turn(x: Tensor) -> Tensor:
        found: Tensor = rotary(x, offsets)
        return found

    assert gradcheck(turn, x)
    assert gradgradcheck(turn, x)
    plainly, at_once = (
        jacobian(turn, x, vectorize=flag)  # type: ignore[no-untyped-call]
        for flag in (False, True)
    )
    torch.testing.assert_close(at_once, plainly)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), x.detach())  # type: ignore[no-untyped-call]
        tangent = forward_ad.unpack_dual(turn(dual)).tangent  # type: ignore[no-untyped-call]
    torch.testing.assert_close(tangent, turn(x).detach())


@on_forms
def test_transforms(form: dict[str, Any]) -> None:
    rotary = Rotary(6, **form)
    x = torch.randn(4, 2, 3, 5, 6, dtype=torch.float64)
    offsets = torch.arange(8).view(4, 2) - 2
    whole = torch.stack([rotary(one, at) for one, at in zip(x, offsets, strict=True)])
    torch.testing.assert_close(vmap(rotary)(x, offsets), whole)
    torch.testing.assert_close(vmap(lambda one: rotary(one, 4))(x), rotary(x, 4))
    torch.testing.assert_close(
        vmap(rotary, in_dims=(None, 0))(x[0], offsets)[1:2], (rotary(x[0], offsets[1])[None])
    )
    turned_one, tangent = jvp(lambda one: rotary(one, 4), (x,), (x,))  # type: ignore[misc]
    torch.testing.assert_close(tangent, turned_one)
    weights = torch.randn_like(x[0])
    mapped = vmap(grad(lambda one, at: (rotary(one, at) * weights).sum()))(x, offsets)
    free = x.clone().requires_grad_()
    looped = [rotary(one, at) * weights for one, at in zip(free, offsets, strict=True)]
    (wanted,) = torch.autograd.grad(torch.stack(looped).sum(), free)
    torch.testing.assert_close(mapped, wanted)
    # Nothing that a transform made was kept.
    assert_same_bits(rotary(x[0], 4), Rotary(6, **form)(x[0], 4))


@on_forms
def test_attention_is_the_same_padded_on_either_side_and_token_by_token(
    form: dict[str, Any],
) -> None:
    rotary = Rotary(8, **form)
    query, key, value = torch.randn(3, 1, 2, 9, 8)
    whole = hw.attend(rotary(query), rotary(key), value, hw.Causal())
    for offset in (-4, 1000):
        moved = hw.attend(rotary(query, offset), rotary(key, offset), value, hw.Causal())
        torch.testing.assert_close(moved, whole, rtol=1e-4, atol=1e-5)
    pad = (0, 0, 4, 0)
    q, k, v = (torch.nn.functional.pad(t, pad) for t in (query, key, value))
    real = torch.tensor([[False] * 4 + [True] * 9])
    start = torch.tensor([-4])
    among = hw.attend(rotary(q, start), rotary(k, start), v, hw.Causal() & hw.KeyMask(real))
    torch.testing.assert_close(among[:, :, 4:], whole)
    keys = rotary(key)
    for step in range(9):
        now = slice(step, step + 1)
        past = slice(step + 1)
        one = hw.attend(rotary(query[:, :, now], step), keys[:, :, past], value[:, :, past])
        torch.testing.assert_close(one, whole[:, :, now])

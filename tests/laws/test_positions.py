"""Laws of a bias that is read by distance: it is what its spelled-out form is."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.positions import Alibi, RelativeBias
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.calls import Call, calls
from tests.support.oracle import attention
from tests.support.position_rules import added
from tests.support.shapes import Inputs, Sizes, inputs
from tests.support.strategies import position_biases

on_backends = pytest.mark.parametrize("backend", ["reference", "auto"])
SIZES = Sizes(2, 2, 2, 9, 9, 8, 8)


@st.composite
def biased(draw: st.DrawFn, small: bool = False) -> tuple[Call, Alibi | RelativeBias]:
    """Draw a call with a bias by distance, spelled out in float64 in the call and as the object."""
    call = draw(calls(small=small))
    heads = call.given.query.shape[1]
    bias = draw(position_biases(heads))
    setting = replace(call.setting, heads=heads)
    numbers = bias.slopes if isinstance(bias, Alibi) else bias.weight.detach()
    spelled = added(bias, setting, numbers.double())
    return replace(call, setting=setting, pattern=None, bias=spelled), bias


def keywords(call: Call, bias: Alibi | RelativeBias) -> dict[str, object]:
    return {**call.keywords, "bias": bias}


@on_backends
@given(both=biased())
def test_output_and_lse_are_as_right_as_with_the_spelled_out_bias(
    backend: str, both: tuple[Call, Alibi | RelativeBias]
) -> None:
    call, bias = both
    exact = call.answer()
    with torch.no_grad():
        found = hw.attend_with_lse(*call.given, backend=backend, **keywords(call, bias))  # type: ignore[arg-type]
        plain = hw.attend_with_lse(*call.given, backend=backend, **call.keywords)
    for name in ("output", "lse"):
        mine, right, spelled = (getattr(side, name) for side in (found, exact, plain))
        assert_within_budget(mine, exact=right, plain=spelled, label=name)


@on_backends
@given(both=biased(small=True))
def test_gradients_are_as_right_as_with_the_spelled_out_bias(
    backend: str, both: tuple[Call, Alibi | RelativeBias]
) -> None:
    call, bias = both
    learned = [bias.weight] if isinstance(bias, RelativeBias) else []
    free = [t.detach().clone().requires_grad_() for t in call.given]
    output = hw.attend(*free, backend=backend, **keywords(call, bias))  # type: ignore[arg-type]
    found = torch.autograd.grad(weighed(output), [*free, *learned])

    def spelled(dtype: torch.dtype) -> tuple[Tensor, ...]:
        twins = [t.detach().to(dtype).requires_grad_() for t in (*call.given, *learned)]
        given_ = Inputs(*twins[:3])
        numbers = bias.slopes.to(dtype) if isinstance(bias, Alibi) else twins[3]
        spelled_out = {**call.keywords, "bias": added(bias, call.setting, numbers)}
        if dtype == torch.float64:
            output = attention(*given_, bias=spelled_out["bias"], scale=call.scale).output
        else:
            output = hw.attend(*given_, backend=backend, **spelled_out)
        return torch.autograd.grad(weighed(output), twins)

    both_ways = spelled(torch.float64), spelled(torch.float32)
    for name, mine, exact, plain in zip("qkvw", found, *both_ways, strict=False):
        assert_within_budget(mine, exact=exact, plain=plain, label=f"{backend} d{name}")


def weighed(output: Tensor) -> Tensor:
    """Reduce with weights of no symmetry, the same in every dtype."""
    return (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum()


@given(both=biased(small=True))
def test_gradcheck(both: tuple[Call, Alibi | RelativeBias]) -> None:
    call, bias = both
    bias = bias.double()
    learned = [bias.weight] if isinstance(bias, RelativeBias) else []
    free = [t.detach().double().requires_grad_() for t in call.given]

    def run(query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Tensor:
        return hw.attend(query, key, value, backend="reference", **keywords(call, bias))  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(run, (*free, *learned), fast_mode=True)


@given(both=biased(), seed=st.integers(0, 1000))
def test_rows_and_heads_of_the_weights(both: tuple[Call, Alibi | RelativeBias], seed: int) -> None:
    call, bias = both
    query, key, _ = call.given
    with torch.no_grad():
        whole = hw.attention_weights(query, key, **keywords(call, bias))  # type: ignore[arg-type]
        exact = call.answer()
        plain = call.plain(exact).weights
        assert_within_budget(whole, exact=exact.weights, plain=plain, label="weights")
        source = torch.Generator().manual_seed(seed)
        rows = torch.randint(query.shape[2], (3,), generator=source).tolist()
        heads = torch.randint(query.shape[1], (2,), generator=source).tolist()
        part = hw.attention_weights(query, key, rows=rows, heads=heads, **keywords(call, bias))  # type: ignore[arg-type]
    torch.testing.assert_close(part, whole[:, heads][:, :, rows])


def makers() -> list[Alibi | RelativeBias]:
    one_sided, two_sided = RelativeBias(4, 8, 20, bidirectional=False), RelativeBias(4, 8, 20)
    for bias in (one_sided, two_sided):
        torch.nn.init.normal_(bias.weight)
    return [Alibi(4), one_sided, two_sided]


@on_backends
@pytest.mark.parametrize("which", range(3))
def test_token_by_token_is_the_whole(backend: str, which: int) -> None:
    """B94: a step of decoding counts distances from where its query stands, not from 0."""
    bias, (query, key, value) = makers()[which], inputs(SIZES)
    with torch.no_grad():
        whole = hw.attend(query, key, value, hw.Causal(), bias=bias, backend=backend)
        for step in range(9):
            now, past = slice(step, step + 1), slice(step + 1)
            one = hw.attend(
                query[:, :, now], key[:, :, past], value[:, :, past], bias=bias, backend=backend
            )
            torch.testing.assert_close(one, whole[:, :, now])


@on_backends
@pytest.mark.parametrize("which", range(3))
def test_left_padding_moves_nothing(backend: str, which: int) -> None:
    """Distances do not change when a sample begins later and its padding is hidden."""
    bias, (query, key, value) = makers()[which], inputs(Sizes(1, 2, 2, 9, 9, 8, 8))
    padded = Inputs(*(torch.nn.functional.pad(t, (0, 0, 4, 0)) for t in (query, key, value)))
    real = torch.tensor([[False] * 4 + [True] * 9])
    with torch.no_grad():
        alone = hw.attend(query, key, value, hw.Causal(), bias=bias, backend=backend)
        among = hw.attend(*padded, hw.Causal() & hw.KeyMask(real), bias=bias, backend=backend)
    torch.testing.assert_close(among[:, :, 4:], alone)


@on_backends
@pytest.mark.parametrize("which", range(3))
def test_more_or_fewer_leading_dimensions(backend: str, which: int) -> None:
    bias, given_ = makers()[which], inputs(SIZES)
    with torch.no_grad():
        four = hw.attend(*given_, hw.Causal(), bias=bias, backend=backend)
        less, more = (Inputs(*(t[at] for t in given_)) for at in (0, None))
        three = hw.attend(*less, hw.Causal(), bias=bias, backend=backend)
        five = hw.attend(*more, hw.Causal(), bias=bias, backend=backend)
    assert_same_bits(three, four[0])
    assert_same_bits(five, four[None])


@on_backends
def test_under_a_causal_pattern_the_slope_of_the_key_is_enough(backend: str) -> None:
    """Adding ``slope * j`` instead moves each row by a constant, which the softmax forgets."""
    given_ = inputs(SIZES)
    bias = Alibi(4)
    keys = bias.slopes.view(1, -1, 1, 1) * torch.arange(9)
    found = hw.attend(*given_, hw.Causal(), bias=bias, backend=backend)
    torch.testing.assert_close(found, hw.attend(*given_, hw.Causal(), bias=keys))

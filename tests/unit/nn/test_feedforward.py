"""FeedForward: both formulas, every activation, what runs on its layers, what it refuses."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

import headwise as hw
from tests.support.budget import assert_same_bits, assert_within_budget

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x * (x > 0),
    "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + torch.exp(-x)),
}


def spelled(part: hw.nn.FeedForward, x: Tensor) -> Tensor:
    """Compute the part by its formula, in the dtype of ``x``."""

    def through(layer: nn.Linear, x: Tensor) -> Tensor:
        bias = 0 if layer.bias is None else layer.bias.to(x.dtype)
        return x @ layer.weight.to(x.dtype).T + bias

    act = ACTIVATIONS[part.activation]
    if part.W_gate is None:
        return through(part.W_down, act(through(part.W_up, x)))
    return through(part.W_down, act(through(part.W_gate, x)) * through(part.W_up, x))


def test_plain_by_hand() -> None:
    part = hw.nn.FeedForward(2, 3, activation="relu")
    part.load_state_dict(
        {
            "W_up.weight": torch.tensor([[1.0, 0], [0, 2], [-1, 1]]),
            "W_up.bias": torch.tensor([0.0, 1, 0]),
            "W_down.weight": torch.tensor([[1.0, 1, 1], [0, 1, 10]]),
            "W_down.bias": torch.tensor([0.5, 0]),
        }
    )
    # Inner numbers 3, -3, -5 and -1, 5, 3; the negative ones become 0.
    found = part(torch.tensor([[3.0, -2], [-1, 2]]))
    assert torch.equal(found, torch.tensor([[3.5, 0], [8.5, 35]]))


def test_gated_by_hand() -> None:
    part = hw.nn.FeedForward(2, 2, activation="relu", gated=True, bias=False)
    part.load_state_dict(
        {
            "W_gate.weight": torch.tensor([[1.0, 0], [0, 1]]),
            "W_up.weight": torch.tensor([[0.0, 1], [2, 0]]),
            "W_down.weight": torch.tensor([[1.0, 0], [1, 1]]),
        }
    )
    # Gates 3 and 0 (from -2), beside -2 and 6.
    assert torch.equal(part(torch.tensor([[3.0, -2]])), torch.tensor([[-6.0, -6]]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_formula_and_its_gradients(
    activation: str, gated: bool, bias: bool, training: bool
) -> None:
    part = hw.nn.FeedForward(7, 13, activation=activation, gated=gated, bias=bias).train(training)
    x = torch.randn(2, 5, 7)
    with torch.no_grad():
        unseen = part(x)
    exact, plain, ours = (
        derived(run, copy.deepcopy(part).to(dtype), x.to(dtype))
        for run, dtype in (
            (spelled, torch.float64),
            (spelled, torch.float32),
            (hw.nn.FeedForward.__call__, torch.float32),
        )
    )
    for name, right in exact.items():
        assert_within_budget(ours[name], exact=right, plain=plain[name], label=name)
    assert_within_budget(unseen, exact=exact["output"], plain=plain["output"], label="inference")


def derived(run: Callable[..., Tensor], part: hw.nn.FeedForward, x: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    output = run(part, x)
    upstream = torch.linspace(-1, 1, output.numel(), dtype=x.dtype).view(output.shape)
    inputs = {"x": x, **dict(part.named_parameters())}
    learned = torch.autograd.grad(output, list(inputs.values()), upstream)
    return {"output": output.detach(), **dict(zip(inputs, learned, strict=True))}


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: torch.dtype, gated: bool) -> None:
    part = hw.nn.FeedForward(16, activation="silu", gated=gated, dtype=dtype)
    x = torch.randn(3, 5, 16, dtype=dtype)
    with torch.no_grad():
        found, exact, plain = part(x), spelled(part, x.double()), spelled(part, x)
    assert found.dtype == dtype
    assert_within_budget(found, exact=exact, plain=plain, label=str(dtype))


def test_sizes_and_names() -> None:
    part = hw.nn.FeedForward(8, gated=True, bias=False, device="meta", dtype=torch.bfloat16)
    assert {name: tuple(weight.shape) for name, weight in part.state_dict().items()} == {
        "W_gate.weight": (32, 8),
        "W_up.weight": (32, 8),
        "W_down.weight": (8, 32),
    }
    assert {weight.dtype for weight in part.parameters()} == {torch.bfloat16}
    assert {weight.device.type for weight in part.parameters()} == {"meta"}
    assert (part.d_model, part.hidden_dim) == (8, 32)
    assert list(hw.nn.FeedForward(8, 5).state_dict()) == [
        "W_up.weight",
        "W_up.bias",
        "W_down.weight",
        "W_down.bias",
    ]
    assert "activation='gelu', dropout=0.5" in repr(hw.nn.FeedForward(2, dropout=0.5))


@pytest.mark.parametrize("shape", [(0, 5, 8), (2, 0, 8), (5, 8), (2, 3, 5, 8)], ids=str)
def test_any_leading_sizes(shape: tuple[int, ...]) -> None:
    part, x = hw.nn.FeedForward(8, gated=True), torch.ones(shape, requires_grad=True)
    found = part(x)
    assert found.shape == shape
    torch.autograd.backward(found.sum())
    assert x.grad is not None
    assert x.grad.shape == shape
    with torch.inference_mode():
        assert part(x).shape == shape


class Doubled(nn.Module):
    """Doubles a tensor, or what a layer makes."""

    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return 2 * (x if self.layer is None else self.layer(x))


def hooked(part: nn.Module, name: str) -> None:
    part.get_submodule(name).register_forward_hook(lambda _, __, output: 2 * output)


def parametrised(part: nn.Module, name: str) -> None:
    for weight in ("weight", "bias"):
        parametrize.register_parametrization(part.get_submodule(name), weight, Doubled())


def adapted(part: nn.Module, name: str) -> None:
    part.set_submodule(name, Doubled(part.get_submodule(name)))


@pytest.mark.parametrize("name", ["W_gate", "W_up", "W_down"])
@pytest.mark.parametrize("change", [hooked, parametrised, adapted])
def test_what_stands_on_a_layer_runs(change: Callable[[nn.Module, str], None], name: str) -> None:
    part, x = hw.nn.FeedForward(8, 6, activation="silu", gated=True), torch.randn(2, 3, 8)
    wanted = copy.deepcopy(part)
    for weight in wanted.get_submodule(name).parameters():
        weight.data *= 2
    part(x)
    change(part, name)
    with torch.no_grad():
        exact, plain = spelled(wanted, x.double()), spelled(wanted, x)
        assert_within_budget(part(x), exact=exact, plain=plain, label=name)


def test_dropout_is_of_inner_numbers_and_off_in_eval() -> None:
    part = hw.nn.FeedForward(8, 6, dropout=0.5)
    x = torch.randn(3, 8)
    torch.manual_seed(1)
    found = part(x)
    torch.manual_seed(1)
    inner = functional.dropout(functional.gelu(part.W_up(x)), 0.5)
    assert_same_bits(found, part.W_down(inner))
    part.eval()
    before = torch.get_rng_state()
    assert_same_bits(part(x), part(x))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        (
            {"d_model": 0},
            hw.errors.ShapeError,
            "FeedForward: sizes must be ints of at least 1, got d_model=0\n"
            "  hint: sizes count columns or heads; convert a computed one with int(…)",
        ),
        (
            {"hidden_dim": -3},
            hw.errors.ShapeError,
            "FeedForward: sizes must be ints of at least 1, got hidden_dim=-3\n"
            "  hint: sizes count columns or heads; convert a computed one with int(…)",
        ),
        (
            {"activation": "swiglu"},
            ValueError,
            "FeedForward: activation must be one of relu, gelu, gelu_tanh, silu, got 'swiglu'\n"
            '  hint: "gelu" is the exact form, "gelu_tanh" its approximation',
        ),
        (
            {"dropout": 1.5},
            ValueError,
            "FeedForward: dropout must lie between 0 and 1, got 1.5\n"
            "  hint: dropout is the share of numbers set to zero in training",
        ),
    ],
)
def test_refused_settings(wrong: dict[str, Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind) as refused:
        hw.nn.FeedForward(**{"d_model": 8, **wrong})
    assert str(refused.value) == says


@pytest.mark.usefixtures("plain_calls")
def test_refused_inputs() -> None:
    with pytest.raises(hw.errors.ShapeError) as refused:
        hw.nn.FeedForward(8)(torch.zeros(2, 5, 7))
    assert str(refused.value) == (
        "FeedForward: the last dimension of x must be d_model = 8, got (2, 5, 7)\n"
        "  x  (2, 5, 7) torch.float32 cpu\n"
        "  hint: x is (batch, length, d_model), as the attention before it returns it"
    )

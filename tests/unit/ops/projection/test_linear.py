"""``linear``: every way gives the linear map, and which way is taken."""

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import headwise as hw
from headwise.ops.projection import choice, explain_linear, linear
from headwise.ops.projection.api import ACTIVATIONS
from tests.support.budget import assert_same_bits, assert_within_budget

WIDE = (307, 257)


def drawn(rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(rows)
    outputs, inputs = WIDE
    x, weight, bias = (
        torch.randn(rows, inputs),
        torch.randn(outputs, inputs),
        torch.randn(outputs),
    )
    return x.to(dtype), (weight / 16).to(dtype), bias.to(dtype)


@pytest.fixture(autouse=True)
def inference_on_a_processor_like_most(monkeypatch: pytest.MonkeyPatch) -> object:
    """Every processor takes the same ways here."""
    monkeypatch.setattr(choice, "_is_intel", lambda: False)
    with torch.no_grad():
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 16, 67])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_way_is_the_linear_map(activation: str, rows: int, dtype: torch.dtype) -> None:
    x, weight, bias = drawn(rows, dtype)
    for offset in (bias, None):
        wide = None if offset is None else offset.double()
        exact = ACTIVATIONS[activation](functional.linear(x.double(), weight.double(), wide))
        plain = ACTIVATIONS[activation](functional.linear(x, weight, offset))
        for use in ("packed", "unpacked", "torch"):
            with hw.nn.projections(use):
                found = linear(x, weight, offset, activation)
            assert found.dtype == dtype
            assert_within_budget(found, exact=exact, plain=plain, label=use)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("use", ["packed", "unpacked"])
def test_a_weight_may_lie_the_other_way_round(use: str, dtype: torch.dtype) -> None:
    x, weight, bias = drawn(67, dtype)
    turned = weight.t().contiguous().t()
    with hw.nn.projections(use):
        assert explain_linear(x, turned, bias).library == "onednn"
        assert_same_bits(linear(x, turned, bias), linear(x, weight, bias), use)


@pytest.mark.parametrize(
    ("rows", "dtype", "library"),
    [
        (1, torch.float32, "rows"),
        (4, torch.bfloat16, "rows"),
        (2, torch.float16, "rows"),
        (1, torch.float16, "torch"),
        (16, torch.float32, "rows"),  # too small to start a library for
        (16, torch.bfloat16, "rows"),
        (16, torch.float16, "torch"),
        (67, torch.float32, "onednn"),
        (67, torch.float16, "torch"),
        (1, torch.float64, "torch"),
        (67, torch.float64, "torch"),
    ],
)
def test_which_way_is_taken(rows: int, dtype: torch.dtype, library: str) -> None:
    x, weight, bias = drawn(rows, dtype)
    assert explain_linear(x, weight, bias).library == library
    with hw.nn.projections("torch"):
        assert explain_linear(x, weight, bias).library == "torch"


def test_more_rows_of_a_small_weight_are_left_to_torch() -> None:
    assert explain_linear(torch.ones(17, 31), torch.ones(29, 31)).library == "torch"


def test_intel_multiplies_float32_by_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_is_intel", lambda: True)
    assert explain_linear(*drawn(67)).library == "torch"
    assert explain_linear(*drawn(1)).library == "rows"


def test_leading_dimensions_and_strides_do_not_matter() -> None:
    x, weight, bias = drawn(6)
    shaped = x.reshape(2, 3, -1)
    for rows in (shaped, shaped.transpose(0, 1), shaped[..., ::3], shaped[:, :, 5:], shaped[:1]):
        part = weight[:, : rows.shape[-1]]
        wanted = functional.linear(rows.double(), part.double(), bias.double())
        found = linear(rows, part, bias)
        assert found.shape == wanted.shape
        assert_within_budget(
            found, exact=wanted, plain=functional.linear(rows, part, bias), label=str(rows.shape)
        )
    assert linear(x[0], weight, bias).shape == (WIDE[0],)
    assert linear(x[:0], weight, bias).shape == (0, WIDE[0])


def test_gradients_and_training_are_torchs() -> None:
    x, weight, bias = drawn(3)
    with torch.enable_grad():
        weight.requires_grad_()
        assert explain_linear(x, weight, bias).library == "torch"
        torch.autograd.backward(linear(x, weight, bias, "gelu").sum())
    assert weight.grad is not None


def test_autocast_chooses_the_dtype() -> None:
    x, weight, bias = drawn(67)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(x, weight, bias).dtype == torch.bfloat16


def test_torchs_refusals_are_torchs() -> None:
    x, weight, bias = drawn(3)
    with pytest.raises(RuntimeError, match="dtype"):
        linear(x, weight.half(), bias)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(x[:, 1:], weight, bias)
    with pytest.raises(ValueError, match="no activation 'tanh'"):
        linear(x, weight, bias, "tanh")


def test_switched_off_onednn_is_not_used() -> None:
    x, weight, bias = drawn(67)
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        assert explain_linear(x, weight, bias).library == "torch"
        assert_same_bits(linear(x, weight, bias), functional.linear(x, weight, bias))
    finally:
        torch._C._set_mkldnn_enabled(before)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_transforms_and_compilers_see_torchs_operations() -> None:
    x, weight, bias = drawn(67)
    mapped = torch.func.vmap(lambda row: linear(row, weight, bias))(x)
    torch.testing.assert_close(mapped, functional.linear(x, weight, bias))
    compiled = torch.compile(linear, backend="eager", fullgraph=True)
    assert_same_bits(compiled(x, weight, bias), functional.linear(x, weight, bias))
    tangent = torch.func.jvp(lambda y: linear(y, weight, bias), (x,), (x,))[1]
    torch.testing.assert_close(tangent, functional.linear(x, weight))
    meta = linear(x.to("meta"), weight.to("meta"), bias.to("meta"))
    assert meta.is_meta


def test_the_switch_is_an_error_for_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="must be one of packed, unpacked, torch, got 'mkl'"):
        hw.nn.projections("mkl").__enter__()
    monkeypatch.setenv("HEADWISE_PROJECTIONS", "torch")
    assert explain_linear(*drawn(1)).library == "torch"
    monkeypatch.setenv("HEADWISE_PROJECTIONS", "fast")
    with pytest.raises(hw.BackendRefused, match="HEADWISE_PROJECTIONS: must be one of"):
        linear(*drawn(1))


@pytest.mark.parametrize("rows", [1, 4, 67])
def test_biases_of_any_form_are_what_torch_makes_of_them(rows: int) -> None:
    """oneDNN read a bias with gaps as if it had none."""
    x, weight, bias = drawn(rows)
    gaps = torch.stack([bias, torch.full_like(bias, torch.nan)], 1)[:, 0]
    assert_within_budget(
        linear(x, weight, gaps),
        exact=functional.linear(x.double(), weight.double(), bias.double()),
        plain=functional.linear(x, weight, bias),
        label="gaps",
    )
    for other in (bias[:1].expand(WIDE[0]), torch.tensor(3.0), bias[:1], bias[None]):
        wanted = functional.linear(x, weight, other)
        torch.testing.assert_close(linear(x, weight, other), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 67])
def test_signs_that_torch_applies_later(rows: int) -> None:
    x, weight, bias = drawn(rows)
    for tensors in (
        (torch._neg_view(x), weight, bias),
        (x, torch._neg_view(weight), bias),
        (x, weight, torch._neg_view(bias)),
    ):
        assert_same_bits(linear(*tensors), functional.linear(*tensors))


@pytest.mark.parametrize("rows", [1, 67])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_broken_token_looks_broken(activation: str, rows: int) -> None:
    """oneDNN's relu gives 0 for NaN."""
    x, weight, bias = drawn(rows)
    x[0, 3] = torch.nan
    found = linear(x, weight, bias, activation)
    assert found[0].isnan().all()
    assert found[1:].isfinite().all()


def test_function_modes_see_torchs_functions() -> None:
    class Listener(TorchFunctionMode):
        """Notes what is called."""

        heard: ClassVar[list[object]] = []

        def __torch_function__(
            self,
            func: Callable[..., object],
            types: object,
            args: tuple[object, ...] = (),
            kwargs: dict[str, object] | None = None,
        ) -> object:
            self.heard.append(func)
            return func(*args, **(kwargs or {}))

    x, weight, bias = drawn(67)
    with Listener() as listener:
        linear(x, weight, bias)
    assert functional.linear in listener.heard
    with torch.device("cpu"):
        assert explain_linear(x, weight, bias).library == "onednn"

"""Our layers against torch's, for drawn settings and calls: values, weights and all gradients."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

from headwise.nn.from_torch import from_torch
from headwise.nn.torch_attention import TorchMultiheadAttention
from tests.support.budget import assert_within_budget
from tests.support.torch_calls import assert_found, our_call, parted_call, torch_call, turned_call
from tests.support.torch_layers import Variant, variants

ON = {"need_weights": True, "average_attn_weights": False}
MEAN = {"need_weights": True}
OFF = {"need_weights": False}
SPELLINGS = (torch_call, turned_call, parted_call)


def _judged(variant: Variant, settings: dict[str, Any], training: bool) -> None:
    """Dropout in training is compared where our layer draws torch's own numbers: with weights."""
    if training and not settings["need_weights"]:
        variant = replace(variant, dropout=0.0)
    theirs = variant.layer().train(training)
    ours = TorchMultiheadAttention.from_torch(copy.deepcopy(theirs))
    exact = torch_call(copy.deepcopy(theirs).double(), variant, **settings)
    spellings = (torch_call,) if training and variant.dropout else SPELLINGS
    plain = [call(theirs, variant, **settings) for call in spellings]
    found = torch_call(ours, variant, **settings)
    assert_found(found, exact=exact, plain=plain, label=str((variant, settings)))


@pytest.mark.parametrize("settings", [ON, MEAN, OFF], ids=["per head", "mean", "no weights"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@given(variant=variants())
def test_torchs_interface(settings: dict[str, Any], training: bool, variant: Variant) -> None:
    _judged(variant, settings, training)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@given(variant=variants())
def test_our_interface(training: bool, variant: Variant) -> None:
    variant = replace(variant, dropout=0.0 if training else variant.dropout)
    theirs = variant.layer().train(training)
    exact = torch_call(copy.deepcopy(theirs).double(), variant, **OFF)
    plain = [call(theirs, variant, **OFF) for call in SPELLINGS]
    found = our_call(from_torch(theirs), variant)
    assert_found(found, exact=exact, plain=plain, label=str(variant))


LOW = [torch.bfloat16, torch.float16]
MODES = [torch.no_grad, torch.inference_mode]
CALLS: dict[str, dict[str, Tensor]] = {
    "plain": {},
    "padding": {"key_padding_mask": torch.arange(7) > torch.tensor([[6], [4], [3]])},
    "numbers": {"attn_mask": torch.randn(5, 7, generator=torch.Generator().manual_seed(1))},
}
EXTRA = {"add_bias_kv": True, "add_zero_attn": True}


def _pair(**settings: Any) -> tuple[nn.MultiheadAttention, TorchMultiheadAttention]:
    theirs = nn.MultiheadAttention(16, 2, batch_first=True, **settings)
    return theirs, TorchMultiheadAttention.from_torch(copy.deepcopy(theirs))


def _inputs(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(3, length, 16).to(dtype) for length in (5, 7, 7)]


def _to(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return mask.to(dtype) if mask.is_floating_point() else mask


@pytest.mark.parametrize("masks", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("settings", [{}, EXTRA], ids=["usual", "extra keys"])
def test_low_precision(
    dtype: torch.dtype, autocast: bool, masks: dict[str, Tensor], settings: dict[str, Any]
) -> None:
    theirs, ours = _pair(**settings)
    inputs = _inputs(torch.float32 if autocast else dtype)
    if not autocast:
        theirs, ours = theirs.to(dtype), ours.to(dtype)
        masks = {name: _to(mask, dtype) for name, mask in masks.items()}
    wide = {name: _to(mask, torch.float64) for name, mask in masks.items()}
    exact = copy.deepcopy(theirs).double()(*(x.double() for x in inputs), **wide)
    with torch.autocast("cpu", dtype, enabled=autocast):
        found, plain = ours(*inputs, **masks), theirs(*inputs, **masks)
    for name, mine, right, usual in zip(("output", "weights"), found, exact, plain, strict=True):
        assert mine.dtype == usual.dtype == dtype
        assert_within_budget(mine, exact=right, plain=usual, label=name)


@pytest.mark.parametrize("masks", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.__name__)
def test_without_gradients(
    mode: Callable[[], AbstractContextManager[None]], masks: dict[str, Tensor]
) -> None:
    theirs, ours = _pair()
    inputs = _inputs()
    wanted = ours(*inputs, **masks)
    with mode():
        for found, right, usual in zip(
            ours(*inputs, **masks), wanted, theirs(*inputs, **masks), strict=True
        ):
            torch.testing.assert_close(found, right)
            torch.testing.assert_close(found, usual)


@pytest.mark.parametrize("settings", [{}, EXTRA], ids=["usual", "extra keys"])
@pytest.mark.parametrize("average", [True, False])
def test_dropout_draws_what_torch_draws(average: bool, settings: dict[str, Any]) -> None:
    """The weights that come back are those after dropout, and they made the output."""
    theirs, ours = _pair(dropout=0.4, **settings)
    query, key, value = _inputs()
    found = []
    for layer in (theirs, ours):
        x = query.clone().requires_grad_()
        torch.manual_seed(5)
        output, weights = layer(x, key, value, average_attn_weights=average)
        (gradient,) = torch.autograd.grad(output.square().sum() + weights.square().sum(), x)
        found.append((output, weights, gradient))
    for usual, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, usual)


def test_dropout_without_weights_has_the_right_mean() -> None:
    theirs, ours = _pair(dropout=0.5, **EXTRA)
    inputs = _inputs()
    wanted = theirs.eval()(*inputs)[0]
    with torch.no_grad():
        draws = torch.stack([ours(*inputs, need_weights=False)[0] for _ in range(400)])
    error = (draws.mean(0) - wanted).abs()
    assert bool((error < 6 * draws.std(0) / 400**0.5 + 1e-6).all())


def test_masks_of_numbers_learn() -> None:
    theirs, ours = _pair()
    inputs = _inputs()
    gradients = []
    for layer in (theirs, ours):
        pairs, keys = torch.zeros(5, 7), torch.zeros(3, 7)
        pairs.requires_grad_()
        keys.requires_grad_()
        output, _ = layer(*inputs, keys, attn_mask=pairs)
        gradients.append(torch.autograd.grad(output.square().sum(), (pairs, keys)))
    for usual, mine in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, usual)

"""B108: a causal flag hid the keys of ``add_zero_attn`` and ``add_bias_kv`` from most rows."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import headwise as hw
from headwise.nn.from_torch import from_torch
from headwise.nn.torch_attention import TorchMultiheadAttention
from tests.support.budget import assert_within_budget
from tests.support.oracle import attention
from tests.support.paths import Path, on_layers

SETTINGS = {
    "zero": {"add_zero_attn": True},
    "learned": {"add_bias_kv": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True},
}
on_settings = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


def _layer(settings: dict[str, bool]) -> TorchMultiheadAttention:
    layer = TorchMultiheadAttention(6, 3, batch_first=True, **settings)
    for parameter in (layer.bias_k, layer.bias_v):
        if parameter is not None:
            nn.init.normal_(parameter)
    return layer


def _spelled(layer: TorchMultiheadAttention, x: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and weights by the formula, with more columns that all rows see."""
    dtype = x.dtype
    weight, bias = layer.in_proj_weight.to(dtype), layer.in_proj_bias.to(dtype)
    q, k, v = (
        part.view(*part.shape[:2], 3, 2).transpose(1, 2)
        for part in nn.functional.linear(x, weight, bias).chunk(3, -1)
    )
    if layer.bias_k is not None and layer.bias_v is not None:
        k, v = (
            torch.cat([t, b.to(dtype).view(1, 3, 1, 2).expand(len(x), 3, 1, 2)], 2)
            for t, b in ((k, layer.bias_k), (v, layer.bias_v))
        )
    if layer.add_zero_attn:
        k, v = (nn.functional.pad(t, (0, 0, 0, 1)) for t in (k, v))
    visible = nn.functional.pad(visible, (0, k.shape[2] - visible.shape[-1]), value=True)
    answer = attention(q, k, v, visible, dtype=dtype)
    context = answer.output.transpose(1, 2).flatten(2)
    out = layer.out_proj
    return nn.functional.linear(
        context, out.weight.to(dtype), out.bias.to(dtype)
    ), answer.weights.mean(1)


def _gradients(output: Tensor, *leaves: Tensor) -> list[Tensor]:
    source = torch.Generator().manual_seed(5)
    upstream = torch.randn(output.shape, generator=source).to(output)
    return list(torch.autograd.grad(output, leaves, upstream))


@on_layers
@on_settings
def test_hint_and_weights_change_nothing(path: Path, settings: dict[str, bool]) -> None:
    layer, x = _layer(settings), torch.randn(2, 4, 6)
    closed = torch.ones(4, 4, dtype=torch.bool).triu(1)
    with path.taken():
        calls: list[dict[str, Any]] = [
            {"is_causal": hint, "need_weights": weights}
            for hint in (False, True)
            for weights in (False, True)
        ]
        outputs = [layer(x, x, x, attn_mask=closed, **call)[0] for call in calls]
    exact, _ = _spelled(layer, x.double(), ~closed)
    plain, _ = _spelled(layer, x, ~closed)
    for output in outputs:
        assert_within_budget(output, exact=exact, plain=plain, label=str(settings))


@on_settings
@given(
    seed=st.integers(0, 100),
    length=st.integers(1, 9),
    padded=st.integers(0, 9),
    causal=st.booleans(),
)
def test_both_layers_forwards_and_backwards(
    settings: dict[str, bool], seed: int, length: int, padded: int, causal: bool
) -> None:
    torch.manual_seed(seed)
    layer = _layer(settings)
    ours = from_torch(layer)
    x = torch.randn(23, length, 6).requires_grad_()
    real = torch.arange(length) < torch.tensor([[length - padded]] * 12 + [[length]] * 11)
    visible = real[:, None, None].expand(23, 1, length, length)
    if causal:
        visible = visible & torch.ones(length, length, dtype=torch.bool).tril()
    mask = torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None
    wide = x.detach().double().requires_grad_()
    (exact, weights), (plain, rough) = _spelled(layer, wide, visible), _spelled(layer, x, visible)
    shown = layer(x, x, x, ~real, attn_mask=mask, is_causal=causal)
    given = ours(x, kv_mask=real, pattern=hw.Causal() if causal else None)
    theirs = [t for t in (layer.bias_k, layer.bias_v) if t is not None]
    copies = [t for name, t in ours.named_parameters() if "mechanism" in name]
    right = _gradients(exact, wide, *theirs)
    usual = _gradients(plain, x, *theirs)
    for output, learned in ((shown[0], theirs), (given, copies)):
        assert_within_budget(output, exact=exact, plain=plain, label="output")
        gradients = _gradients(output, x, *learned)
        assert_within_budget(gradients[0], exact=right[0], plain=usual[0], label="gradient")
        for mine, wanted in zip(gradients[1:], right[1:], strict=True):
            torch.testing.assert_close(mine.flatten(), wanted.flatten())
    assert_within_budget(shown[1], exact=weights, plain=rough, label="weights")


@on_layers
def test_a_fully_padded_sample_looks_at_the_zero_slot(path: Path) -> None:
    layer, x = _layer(SETTINGS["zero"]), torch.randn(2, 4, 6)
    padding = torch.tensor([[False] * 4, [True] * 4])
    with path.taken(), torch.no_grad():
        output, weights = layer(x, x, x, padding)
        ours = from_torch(layer)(x, kv_mask=~padding)
    assert weights.shape == (2, 4, 5)
    torch.testing.assert_close(weights[1], torch.tensor([0.0, 0, 0, 0, 1]).expand(4, 5))
    torch.testing.assert_close(output[1], layer.out_proj.bias.expand(4, 6))
    torch.testing.assert_close(ours, output)

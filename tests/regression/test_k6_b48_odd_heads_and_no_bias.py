"""B48: without biases, or with an odd number of heads, a layer failed in inference only."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import headwise as hw
from headwise.nn.from_torch import from_torch
from headwise.nn.torch_attention import TorchMultiheadAttention
from tests.support.torch_layers import swapped

SIZES = st.tuples(st.sampled_from([1, 2, 3, 5]), st.integers(1, 4))


@given(sizes=SIZES, bias=st.booleans(), batch_first=st.booleans(), seed=st.integers(0, 100))
def test_inference_equals_training(
    sizes: tuple[int, int], bias: bool, batch_first: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    heads, dim = sizes
    made: dict[str, Any] = {"bias": bias, "batch_first": batch_first}
    layer = TorchMultiheadAttention(heads * dim, heads, **made)
    ours: hw.MultiHeadAttention = from_torch(layer)
    x = torch.randn(2, 7, heads * dim)
    laid = x if batch_first else x.transpose(0, 1)
    padding = torch.arange(7) > torch.tensor([[6], [seed % 5]])
    wanted = ours(x, kv_mask=~padding)
    right = torch.autograd.grad(wanted.square().sum(), ours.W_v.weight)[0]
    for training in (True, False):
        layer.train(training)
        ours.train(training)
        found = layer(laid, laid, laid, padding)[0]
        (gradient,) = torch.autograd.grad(found.square().sum(), layer.in_proj_weight)
        torch.testing.assert_close(gradient[-heads * dim :], right)
        with torch.no_grad():
            quiet = layer(laid, laid, laid, padding, need_weights=False)[0]
            still = ours(x, kv_mask=~padding)
        for output in (found, quiet):
            torch.testing.assert_close(output if batch_first else output.transpose(0, 1), wanted)
        torch.testing.assert_close(still, wanted)


@given(heads=st.sampled_from([1, 3]), bias=st.booleans(), norm_first=st.booleans())
def test_in_an_encoder(heads: int, bias: bool, norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(
        9, heads, 12, 0.0, bias=bias, batch_first=True, norm_first=norm_first
    )
    model = swapped(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    x, padding = torch.randn(2, 5, 9), torch.arange(5) > torch.tensor([[4], [2]])
    wanted = model(x, src_key_padding_mask=padding)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(model(x, src_key_padding_mask=padding), wanted)

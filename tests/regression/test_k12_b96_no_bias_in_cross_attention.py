"""K12, B96: the relative bias of T5 was added in cross attention, where T5 has none.

transformers#8518, #6285.
"""

import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from headwise.positions import RelativeBias
from tests.support.budget import largest_error


def block(width: int) -> hw.nn.TransformerBlock:
    """Make a decoder block whose self-attention has the bias."""
    return hw.nn.TransformerBlock(
        hw.MultiHeadAttention(width, 2, pattern=hw.Causal(), positions=RelativeBias(2)),
        hw.nn.FeedForward(width),
        cross_attention=hw.MultiHeadAttention(width, 2),
        norm="rms",
    )


@given(queries=st.integers(1, 5), keys=st.integers(1, 5), seed=st.integers(0, 99))
def test_without_content_every_key_weighs_the_same(queries: int, keys: int, seed: int) -> None:
    torch.manual_seed(seed)
    decoder = block(8).double()
    cross = decoder.cross_attention
    assert cross is not None
    for linear in (cross.W_q, cross.W_k):
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
    x = torch.randn(2, queries, 8, dtype=torch.float64)
    memory = torch.randn(2, keys, 8, dtype=torch.float64)
    q, k, _ = cross.project(x, memory)
    weights = hw.attention_weights(q, k)
    assert largest_error(weights, torch.full_like(weights, 1.0 / keys)) < 1e-15
    mean = memory.mean(1, keepdim=True).expand(2, queries, 8)
    wanted = cross.W_o(cross.W_v(mean))
    assert largest_error(cross(x, memory), wanted) < 1e-12


@given(seed=st.integers(0, 99))
def test_the_bias_gets_no_gradient_from_the_memory(seed: int) -> None:
    torch.manual_seed(seed)
    decoder = block(8).double()
    x, memory = torch.randn(1, 3, 8).double(), torch.randn(1, 4, 8).double()
    bias = decoder.attention.positions
    assert isinstance(bias, RelativeBias)
    (found,) = torch.autograd.grad(decoder(x, memory).sum(), [bias.weight])
    assert found.shape == (32, 2)
    one_token = decoder(x[:, :1], memory).sum()  # a softmax over one key has no gradient
    (none,) = torch.autograd.grad(one_token, [bias.weight])
    assert largest_error(none, torch.zeros_like(none)) < 1e-15

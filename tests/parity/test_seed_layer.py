"""The layer against the class that the project started from, written out anew."""

import math

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from tests.support.budget import assert_within_budget

WIDTH, HEADS, BATCH, LENGTH = 21, 3, 2, 11


class Seed(nn.Module):
    """Four projections, heads cut from the width, masked pairs at -1e9, everything in n²."""

    def __init__(self) -> None:
        super().__init__()
        self.W_q = nn.Linear(WIDTH, WIDTH)
        self.W_k = nn.Linear(WIDTH, WIDTH)
        self.W_v = nn.Linear(WIDTH, WIDTH)
        self.W_o = nn.Linear(WIDTH, WIDTH)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        width = WIDTH // HEADS
        q, k, v = self.W_q(query), self.W_k(key), self.W_v(value)
        contexts = []
        for head in range(HEADS):
            part = slice(head * width, (head + 1) * width)
            scores = q[:, :, part] @ k[:, :, part].transpose(1, 2) / math.sqrt(width)
            if mask is not None:
                scores = scores.masked_fill(mask == 0, -1e9)
            contexts.append(scores.softmax(-1) @ v[:, :, part])
        output: Tensor = self.W_o(torch.cat(contexts, -1))
        return output


def _pair() -> tuple[Seed, hw.MultiHeadAttention]:
    seed, layer = Seed(), hw.MultiHeadAttention(WIDTH, HEADS)
    layer.load_state_dict(seed.state_dict())
    return seed, layer


def _assert_equal(mask: Tensor | None, *inputs: Tensor, mask_for_seed: Tensor | None) -> None:
    seed, layer = _pair()
    with torch.no_grad():
        actual = layer(*inputs, mask)
        plain = seed(*inputs, mask_for_seed)
        exact = seed.double()(*(x.double() for x in inputs), mask_for_seed)
    assert_within_budget(actual, exact=exact, plain=plain, label="seed")


def test_state_dict_has_the_keys_of_the_seed() -> None:
    seed, layer = _pair()
    assert list(layer.state_dict()) == list(seed.state_dict())
    assert (layer.d_model, layer.num_heads, layer.d_k) == (WIDTH, HEADS, WIDTH // HEADS)


def test_self_attention_without_a_mask() -> None:
    x = torch.randn(BATCH, LENGTH, WIDTH)
    _assert_equal(None, x, x, x, mask_for_seed=None)


def test_cross_attention() -> None:
    x, memory, content = (torch.randn(BATCH, n, WIDTH) for n in (5, LENGTH, LENGTH))
    _assert_equal(None, x, memory, content, mask_for_seed=None)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_mask_of_zeros_and_ones(dtype: torch.dtype) -> None:
    x = torch.randn(BATCH, LENGTH, WIDTH)
    visible = torch.rand(LENGTH, LENGTH) > 0.4
    visible[:, 2] = True  # a row that sees nothing is the one place where the two differ
    _assert_equal(visible.to(dtype), x, x, x, mask_for_seed=visible)


def test_padding_mask_of_four_dimensions() -> None:
    x = torch.randn(BATCH, LENGTH, WIDTH)
    real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4]])
    _assert_equal(real[:, None, None], x, x, x, mask_for_seed=real[:, None])


def test_row_that_sees_nothing_is_the_bias_of_the_last_projection() -> None:
    _, layer = _pair()
    x = torch.randn(1, 3, WIDTH)
    visible = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 0]])
    with torch.no_grad():
        assert torch.equal(layer(x, x, x, visible)[0, 1], layer.W_o.bias)


def test_steps_of_the_seed() -> None:
    _, layer = _pair()
    x = torch.randn(BATCH, LENGTH, WIDTH)
    width = WIDTH // HEADS
    split = layer.split_heads(x)
    for head in range(HEADS):
        assert torch.equal(split[:, head], x[:, :, head * width : (head + 1) * width])
    assert torch.equal(layer.combine_heads(split), x)
    q, k, v = layer.project(x, x, x)
    context = hw.attend(q, k, v)
    assert torch.equal(layer.W_o(layer.combine_heads(context)), layer(x, x, x))

"""K12, B94: relative positions were computed from the new queries alone, or dropped with a cache.

transformers#19045, #20203: every cached step saw the distance 0.
"""

import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from headwise.positions import Alibi, RelativeBias
from tests.support.budget import largest_error


def test_the_third_step_sees_the_distances_two_one_and_none() -> None:
    bias = RelativeBias(1, 4, 8, bidirectional=False)
    with torch.no_grad():
        bias.weight.copy_(torch.tensor([[0.1], [0.7], [-0.4], [2.0]]))
    layer = hw.MultiHeadAttention(3, 1, bias=False, pattern=hw.Causal(), positions=bias)
    for linear in (layer.W_q, layer.W_k):
        torch.nn.init.zeros_(linear.weight)
    for linear in (layer.W_v, layer.W_o):
        torch.nn.init.eye_(linear.weight)
    cache, x = hw.KVCache(), torch.eye(3)[None]
    with torch.no_grad():
        steps = torch.cat([layer(x[:, n : n + 1], cache=cache) for n in range(3)], 1)
    wanted = torch.zeros(3, 3)
    numbers = torch.tensor([0.1, 0.7, -0.4]).exp()  # by distance
    for row in range(3):
        seen = numbers[: row + 1].flip(0)
        wanted[row, : row + 1] = seen / seen.sum()
    assert largest_error(steps[0], wanted.double()) < 1e-6


@given(
    length=st.integers(1, 9),
    first=st.integers(0, 8),
    bidirectional=st.booleans(),
    alibi=st.booleans(),
    seed=st.integers(0, 99),
)
def test_cached_steps_are_the_whole_pass_gradients_included(
    length: int, first: int, bidirectional: bool, alibi: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    scheme = Alibi(4) if alibi else RelativeBias(4, 8, 6, bidirectional)
    layer = hw.MultiHeadAttention(
        16, 4, num_kv_heads=2, pattern=hw.Causal(), positions=scheme
    ).double()
    x = torch.randn(2, length, 16, dtype=torch.float64)
    cut = min(first, length)
    cache = hw.KVCache()
    steps = torch.cat(
        [layer(x[:, :cut], cache=cache)]
        + [layer(x[:, n : n + 1], cache=cache) for n in range(cut, length)],
        1,
    )
    whole = layer(x)
    assert largest_error(steps, whole) < 1e-12
    along, parameters = torch.randn_like(whole), list(layer.parameters())
    found = torch.autograd.grad((steps * along).sum(), parameters)
    wanted = torch.autograd.grad((whole * along).sum(), parameters)
    for one, other in zip(found, wanted, strict=True):
        assert largest_error(one, other) < 1e-11

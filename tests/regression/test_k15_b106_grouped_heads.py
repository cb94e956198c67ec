"""B106: grouped keys were tiled (0, 1, 0, 1) where they must be repeated (0, 0, 1, 1)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from tests.support.paths import Path, on_all_once, on_layers
from tests.support.shapes import Sizes
from tests.support.whole_calls import judged_whole, simple


@on_all_once
def test_heads_read_0_0_1_1(path: Path) -> None:
    query, key = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 7, 8)
    value = torch.stack([torch.zeros(7, 8), torch.ones(7, 8)])[None].requires_grad_()
    with path.taken() as backend:
        found = hw.attend(query, key, value, backend=backend)
        (gradient,) = torch.autograd.grad(found[:, 2].sum(), value)
    torch.testing.assert_close(found.mean((0, 2, 3)), torch.tensor([0.0, 0.0, 1.0, 1.0]))
    assert (gradient[:, 0] == 0).all()
    torch.testing.assert_close(gradient[:, 1].sum(), torch.tensor(5.0 * 8))


@on_all_once
@given(
    group=st.integers(1, 4),
    kv_heads=st.integers(1, 3),
    causal=st.booleans(),
    seed=st.integers(0, 9),
)
def test_outputs_and_sums_over_groups(
    path: Path, group: int, kv_heads: int, causal: bool, seed: int
) -> None:
    pattern = hw.Causal() if causal else None
    judged_whole(path, simple(Sizes(2, kv_heads, group, 13, 17, 8, 16), pattern=pattern, seed=seed))


@on_layers
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_layer_with_repeated_weights(path: Path, kv_heads: int) -> None:
    """Gradients of a head's weights are the sums over the query heads that read it."""
    grouped = hw.MultiHeadAttention(24, 6, num_kv_heads=kv_heads)
    plain = hw.MultiHeadAttention(24, 6)
    state, group = grouped.state_dict(), 6 // kv_heads
    for name in ("W_k", "W_v"):
        for part in ("weight", "bias"):
            heads = state[f"{name}.{part}"].view(kv_heads, 4, -1)
            repeated = heads.repeat_interleave(group, 0)
            state[f"{name}.{part}"] = repeated.view_as(plain.state_dict()[f"{name}.{part}"])
    plain.load_state_dict(state)
    x = torch.randn(3, 11, 24)
    upstream = torch.randn(3, 11, 24)
    with path.taken():
        outputs = grouped(x), plain(x)
        torch.testing.assert_close(*outputs)
        found = [
            torch.autograd.grad(output, [layer.W_k.weight, layer.W_v.weight], upstream)
            for output, layer in zip(outputs, (grouped, plain), strict=True)
        ]
    for mine, each in zip(*found, strict=True):
        summed = each.view(kv_heads, group, 4, 24).sum(1)
        torch.testing.assert_close(mine, summed.view(-1, 24))


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(("heads", "kv_heads", "value_heads"), [(8, 3, 3), (8, 2, 4), (2, 4, 4)])
def test_counts_that_do_not_divide_are_refused(heads: int, kv_heads: int, value_heads: int) -> None:
    query, key, value = (torch.randn(1, n, 5, 8) for n in (heads, kv_heads, value_heads))
    with pytest.raises(hw.ShapeError):
        hw.attend(query, key, value)

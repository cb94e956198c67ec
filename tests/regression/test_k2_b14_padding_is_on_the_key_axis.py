"""B14: a padding mask was laid on the query axis instead of the key axis."""

import torch

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.paths import Path, on_layers

IDS = torch.tensor([[5, 7, 0, 0]])


@on_layers
def test_a_padded_token_touches_no_real_one(path: Path) -> None:
    layer = hw.MultiHeadAttention(8, 1).eval()
    table = torch.randn(10, 8)
    other = table.clone()
    other[0] = torch.randn(8)
    with path.taken(), torch.no_grad():
        before = layer(table[IDS], kv_mask=IDS != 0)
        after = layer(other[IDS], kv_mask=IDS != 0)
    assert_same_bits(after[:, :2], before[:, :2])


def test_padded_queries_still_see_the_real_keys() -> None:
    query, key = torch.randn(2, 1, 1, 4, 8).unbind(0)
    weights = hw.attention_weights(query, key, hw.KeyMask(IDS != 0))
    assert (weights[..., 2:] == 0).all()
    torch.testing.assert_close(weights[..., :2].sum(-1), torch.ones(1, 1, 4))

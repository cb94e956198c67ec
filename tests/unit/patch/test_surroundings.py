"""Patched calls under autograd and transforms, and inside torch's own layers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import headwise as hw
from headwise.ops import tally
from tests.support.sdpa_calls import taken


def attend(query: Tensor, key: Tensor, **more: Any) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, key, **more)


@pytest.fixture
def given() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_transforms(given: tuple[Tensor, Tensor]) -> None:
    query, key = given
    mask = torch.rand(2, 1, 5, 7) > 0.2

    def loss(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        return attend(query, key, attn_mask=mask).square().sum()

    def run() -> list[Tensor]:
        mapped = torch.vmap(lambda q, k, m: attend(q, k, attn_mask=m))(query, key, mask)
        each = torch.vmap(torch.func.grad(loss), (0, None, 0))(query, key[0], mask)
        return [mapped, each, torch.func.jacrev(loss)(query, key, mask)]

    wanted, found = run(), []
    assert taken(lambda: found.extend(run())) == 3
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_recomputed_dropout_is_the_same(given: tuple[Tensor, Tensor]) -> None:
    query, key = given
    query.requires_grad_()

    def gradient(through: Any) -> Tensor:
        torch.manual_seed(3)
        output = through(lambda q: attend(q, key, dropout_p=0.4), query)
        return torch.autograd.grad(output.sum(), query)[0]

    with hw.patch.sdpa():
        kept = gradient(lambda run, x: run(x))
        again = gradient(lambda run, x: checkpoint(run, x, use_reentrant=False))
    assert torch.equal(kept, again)


def test_a_named_backend_of_attend_keeps_its_word(given: tuple[Tensor, Tensor]) -> None:
    """``backend="sdpa"`` is torch's own function, patched or not."""
    query, key = given
    with tally() as counted, hw.patch.sdpa():
        hw.attend(query, key, key, backend="sdpa")
        hw.attend(query.double(), key.double(), key.double())
    assert counted == {"sdpa": 2}


def test_layers_of_torch() -> None:
    """In training they call the function; their fast path in ``eval()`` does not."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    x = torch.randn(2, 5, 16)
    ends = torch.zeros(2, 5, dtype=torch.bool)
    ends[1, 3:] = True
    wanted = layer(x, src_key_padding_mask=ends)
    assert taken(lambda: layer(x, src_key_padding_mask=ends)) == 1
    with hw.patch.sdpa():
        torch.testing.assert_close(layer(x, src_key_padding_mask=ends), wanted)
    layer.eval()
    with torch.no_grad():
        # The mode of earlier names is a reason for torch not to take its fast path.
        assert taken(lambda: layer(x)) == 1
        with tally() as counted, hw.patch.sdpa(earlier_names=False):
            layer(x)
            layer.self_attn(x, x, x, need_weights=False)
        assert not counted


def test_no_warning_and_no_change_of_inputs(given: tuple[Tensor, Tensor]) -> None:
    query, key = given
    before = query.clone(), key.clone()
    mask = torch.ones(5, 7, dtype=torch.bool)
    with hw.patch.sdpa(), torch.inference_mode():
        found = attend(query, key, attn_mask=mask)
    mask[:] = False
    assert found.any()
    assert torch.equal(query, before[0])
    assert torch.equal(key, before[1])

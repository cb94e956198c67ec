"""B46: an encoder gave other results in eval than in train when padding was not all at the end."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.paths import Path, on_layers
from tests.support.torch_layers import swapped

LENGTH = 6
NAMED = {
    "leading": [True, True, False, False, False, False],
    "middle": [False, False, True, False, True, False],
    "trailing": [False, False, False, False, True, True],
    "all": [True] * LENGTH,
}


def _encoder(nests: bool = False) -> nn.Module:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return swapped(nn.TransformerEncoder(layer, 2, enable_nested_tensor=nests))


def _assert_one_rule(model: nn.Module, x: Tensor, padding: Tensor) -> None:
    """Hold every mode to the same bits, padded outputs too, and real tokens to the sample alone."""
    upstream = torch.randn_like(x).masked_fill(padding[..., None], 0.0)
    outputs, gradients = [], []
    for training in (True, False):
        model.train(training)
        found = model(x, src_key_padding_mask=padding)
        gradients.append(torch.autograd.grad(found, list(model.parameters()), upstream))
        outputs.append(found.detach())
    with torch.no_grad():
        outputs.append(model(x, src_key_padding_mask=padding))
    with torch.inference_mode():
        outputs.append(model(x, src_key_padding_mask=padding).clone())
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0])
    for one, two in zip(*gradients, strict=True):
        assert_same_bits(one, two)
    assert outputs[0].isfinite().all()
    for sample, hidden, whole in zip(x, padding, outputs[0], strict=True):
        if not hidden.all():
            alone = model(sample[None, ~hidden])[0]
            torch.testing.assert_close(whole[~hidden], alone.detach())


@on_layers
@pytest.mark.parametrize("where", NAMED)
def test_every_mode_agrees(path: Path, where: str) -> None:
    x = torch.randn(2, LENGTH, 8)
    with path.taken():
        _assert_one_rule(_encoder(), x, torch.tensor([[False] * LENGTH, NAMED[where]]))


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype:UserWarning")
@pytest.mark.parametrize("where", NAMED)
def test_an_encoder_that_nests_its_inputs_agrees_at_real_tokens(where: str) -> None:
    """Padding at the end never reaches the layer then, and the encoder itself puts zeros there."""
    x, model, plain = torch.randn(2, LENGTH, 8), _encoder(nests=True).eval(), _encoder().eval()
    padding = torch.tensor([[False] * LENGTH, NAMED[where]])
    with torch.no_grad():
        found, wanted = (each(x, src_key_padding_mask=padding) for each in (model, plain))
    torch.testing.assert_close(found[~padding], wanted[~padding])
    assert found.isfinite().all()
    if where in ("trailing", "all"):
        assert not found[padding].any()


@given(
    rows=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4),
    seed=st.integers(0, 100),
)
def test_any_padding(rows: list[list[bool]], seed: int) -> None:
    torch.manual_seed(seed)
    _assert_one_rule(_encoder(), torch.randn(len(rows), 5, 8), torch.tensor(rows))


@on_layers
@pytest.mark.parametrize("where", NAMED)
def test_our_layer_has_one_path(path: Path, where: str) -> None:
    layer = hw.MultiHeadAttention(8, 2)
    x, real = torch.randn(2, LENGTH, 8), ~torch.tensor([[False] * LENGTH, NAMED[where]])
    with path.taken(), torch.no_grad():
        wanted = layer.train()(x, kv_mask=real)
        torch.testing.assert_close(layer.eval()(x, kv_mask=real), wanted)
        if where == "all":
            assert_same_bits(wanted[1], layer.W_o.bias.expand(LENGTH, 8))

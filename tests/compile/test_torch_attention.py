"""Torch's interface, torch's encoders around it, and extra keys compile whole."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.export import Dim

import headwise as hw
from headwise.nn.from_torch import from_torch
from headwise.nn.torch_attention import TorchMultiheadAttention
from tests.support.torch_layers import swapped

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
PADDING = torch.tensor([[False] * 6, [False, True, False, False, True, True]])
CAUSAL = nn.Transformer.generate_square_subsequent_mask(6)
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no weights": {"need_weights": False, "key_padding_mask": PADDING},
    "every head": {"average_attn_weights": False, "attn_mask": CAUSAL != 0},
    "hint": {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
}
EXTRA = {"add_bias_kv": True, "add_zero_attn": True}


def _assert_alike(found: Any, wanted: Any, leaf: Tensor) -> None:
    found, wanted = (out if isinstance(out, tuple) else (out,) for out in (found, wanted))
    for mine, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, right)
    gradients = [torch.autograd.grad(out[0].square().sum(), leaf) for out in (found, wanted)]
    torch.testing.assert_close(*gradients)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("settings", [{}, EXTRA], ids=["usual", "extra keys"])
def test_torchs_interface(call: dict[str, Any], settings: dict[str, Any]) -> None:
    torch._dynamo.reset()
    layer = TorchMultiheadAttention(8, 2, batch_first=True, **settings)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    _assert_alike(compiled(X, X, X, **call), layer(X, X, X, **call), layer.in_proj_weight)
    layer.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(X, X, X, **call), layer(X, X, X, **call))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("masks", [{"src_key_padding_mask": PADDING}, {"mask": CAUSAL}], ids=list)
def test_encoders(masks: dict[str, Tensor], backend: str) -> None:
    torch._dynamo.reset()
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = swapped(nn.TransformerEncoder(layer, 2))
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    leaf = next(model.parameters())
    _assert_alike(compiled(X, **masks), model(X, **masks), leaf)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(X, **masks), model(X, **masks))


@pytest.mark.slow
def test_extra_keys() -> None:
    torch._dynamo.reset()
    layer: hw.MultiHeadAttention = from_torch(nn.MultiheadAttention(8, 2, **EXTRA))
    layer.pattern = hw.Causal()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    _assert_alike(compiled(X), layer(X), layer.W_q.weight)
    _assert_alike(compiled(X, kv_mask=~PADDING), layer(X, kv_mask=~PADDING), layer.W_q.weight)


@pytest.mark.slow
def test_export() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = swapped(layer).eval()
    exported = torch.export.export(model, (X,)).module()
    torch.testing.assert_close(exported(X), model(X))


OTHER_LENGTHS = (7, 9, 4, 12)


def _causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def _graphs_for_lengths(run: Callable[[int], tuple[object, object]]) -> int:
    """Return how many graphs serve all lengths; ``run`` gives what is found and wanted for one."""
    torch._dynamo.reset()
    counters.clear()
    for length in (5, *OTHER_LENGTHS):
        torch.testing.assert_close(*run(length))
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.slow
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", ["none", "pairs", "padding"])
def test_lengths_vary_without_new_graphs(mask: str, need_weights: bool) -> None:
    layer = TorchMultiheadAttention(8, 2, batch_first=True).eval()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")

    def run(length: int) -> tuple[object, object]:
        x, masks = torch.randn(2, length, 8), {}
        if mask == "pairs":
            masks = {"attn_mask": _causal(length)}
        elif mask == "padding":
            masks = {"key_padding_mask": torch.arange(length) >= torch.tensor([[length], [2]])}
        rest = {"need_weights": need_weights, **masks}
        return compiled(x, x, x, **rest), layer(x, x, x, **rest)

    assert _graphs_for_lengths(run) == 2


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [None, hw.Causal()], ids=str)
def test_lengths_of_weights_vary(pattern: hw.patterns.Pattern | None) -> None:
    compiled = torch.compile(hw.attention_weights, fullgraph=True, backend="eager")

    def run(length: int) -> tuple[object, object]:
        query, key = torch.randn(2, 4, length, 8), torch.randn(2, 2, length, 8)
        return compiled(query, key, pattern), hw.attention_weights(query, key, pattern)

    assert _graphs_for_lengths(run) == 2


class WithWeights(nn.Module):
    """A call that exports."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = TorchMultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        found: tuple[Tensor, Tensor | None] = self.layer(x, x, x, attn_mask=mask)
        return found


@pytest.mark.slow
def test_export_with_open_sizes() -> None:
    model = WithWeights().eval()
    length, batch = Dim("length", min=2, max=64), Dim("batch", min=2, max=64)
    given = (torch.randn(2, 5, 8), _causal(5))
    open_sizes = ({0: batch, 1: length}, {0: length, 1: length})
    exported = torch.export.export(model, given, dynamic_shapes=open_sizes).module()
    for other in OTHER_LENGTHS:
        inputs = (torch.randn(3, other, 8), _causal(other))
        torch.testing.assert_close(exported(*inputs), model(*inputs))

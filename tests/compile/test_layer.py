"""The layer in graphs: every position scheme, padding, offsets and a fixed cache."""

import pytest
import torch

import headwise as hw
from tests.support.schemes import SCHEMES

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def no_graphs_of_other_tests() -> None:
    torch._dynamo.reset()


def made(scheme: str) -> hw.MultiHeadAttention:
    torch.manual_seed(0)
    return hw.MultiHeadAttention(
        24,
        4,
        num_kv_heads=2,
        head_dim=8,
        pattern=hw.Causal(),
        positions=SCHEMES[scheme](24, 4, 8),
        qk_norm=True,
    ).eval()


QUICK = ("rotary",)
on_schemes = pytest.mark.parametrize(
    "scheme",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SCHEMES],
)


@on_schemes
def test_a_graph_gives_what_eager_gives(scheme: str) -> None:
    layer = made(scheme)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    real = torch.arange(7).expand(2, 7) >= torch.tensor([[0], [3]])
    with torch.no_grad():
        for length in (7, 5):
            x = torch.randn(2, length, 24)
            wanted = layer(x, kv_mask=real[:, :length])
            torch.testing.assert_close(compiled(x, kv_mask=real[:, :length]), wanted)


@pytest.mark.parametrize("scheme", ["learned", pytest.param("rotary", marks=pytest.mark.slow)])
def test_offsets_of_samples_in_a_graph(scheme: str) -> None:
    layer = made(scheme)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x, offset = torch.randn(2, 5, 24), torch.tensor([3, 0])
    torch.testing.assert_close(compiled(x, q_offset=offset), layer(x, q_offset=offset))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_export_keeps_positions(scheme: str) -> None:
    layer, x = made(scheme), torch.randn(2, 7, 24)
    with torch.no_grad():
        program = torch.export.export(layer, (x,), strict=False)
        torch.testing.assert_close(program.module()(x), layer(x))


def test_gradients_of_a_graph() -> None:
    layer, x = made("relative"), torch.randn(2, 5, 24)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    grads = []
    for run in (layer, compiled):
        layer.zero_grad()
        torch.autograd.backward(run(x).square().sum())
        grads.append([p.grad for p in layer.parameters()])
    for found, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(found, wanted)

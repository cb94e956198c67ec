"""Low-rank attention in graphs: compiled, exported, with padding and other lengths."""

from typing import Any

import pytest
import torch
from torch.export import Dim

import headwise as hw
from tests.support.budget import assert_same_bits

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

KINDS: dict[str, dict[str, Any]] = {
    "none": {},
    "all": {"share": "all"},
    "conv": {"projection": "conv"},
    "mean": {"projection": "mean"},
}
on_kinds = pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=name, marks=() if name == "none" else pytest.mark.slow)
        for name, settings in KINDS.items()
    ],
)


@pytest.fixture(autouse=True)
def no_graphs_of_other_tests() -> None:
    torch._dynamo.reset()


def made(settings: dict[str, Any]) -> hw.MultiHeadAttention:
    mechanism = hw.nn.LowRank(8, 64, **settings)
    return hw.MultiHeadAttention(16, 4, num_kv_heads=2, mechanism=mechanism).eval()


def arguments(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, length, 16), torch.arange(length).expand(2, -1) < length - 2


@on_kinds
def test_a_graph_gives_what_eager_gives(settings: dict[str, Any]) -> None:
    layer = made(settings)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (13, 21):
        x, real = arguments(length)
        gradients = []
        for run in (layer, compiled):
            layer.zero_grad()
            output = run(x, kv_mask=real)
            output.square().sum().backward()
            gradients.append([output.detach(), *(p.grad for p in layer.parameters())])
        for found, wanted in zip(*gradients, strict=True):
            torch.testing.assert_close(found, wanted)


@on_kinds
def test_export_takes_other_lengths(settings: dict[str, Any]) -> None:
    layer = made(settings)
    length = Dim("length", min=9, max=64)  # more than one window

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor, real: torch.Tensor) -> Any:
            return self.layer(x, kv_mask=real)

    module = Masked().eval()
    shapes = {"x": {1: length}, "real": {1: length}}
    with torch.no_grad():
        program = torch.export.export(module, arguments(13), dynamic_shapes=shapes, strict=False)
        for other in (9, 13, 64):
            given = arguments(other)
            torch.testing.assert_close(program.module()(*given), module(*given))


def test_fake_tensors() -> None:
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(2, 3, 5, 8, dtype=torch.bfloat16)
        projection = torch.empty(3, 4, 9, dtype=torch.bfloat16)
        found = hw.lowrank_attend(x, x, x, projection, projection)
    assert found.shape == x.shape
    assert found.dtype == torch.bfloat16


def test_a_call_is_one_graph() -> None:
    given = [torch.randn(2, 2, 7, 8) for _ in range(3)] + [torch.randn(2, 4, 9)] * 2
    compiled = torch.compile(hw.lowrank_attend, backend="aot_eager", fullgraph=True)
    assert_same_bits(compiled(*given), hw.lowrank_attend(*given))

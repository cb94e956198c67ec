"""Exported programs hold the operator, take other lengths, and can be trained."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx
from typing_extensions import override

import headwise as hw
from headwise.patterns import Pattern, sliding_causal
from tests.support.budget import assert_same_bits

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Attention(nn.Module):
    def __init__(self, pattern: Pattern | None = None) -> None:
        super().__init__()
        self.layer = hw.MultiHeadAttention(16, 4, num_kv_heads=2, pattern=pattern)

    @override
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = self.layer(x, kv_mask=mask)
        return found


def arguments(length: int) -> tuple[Tensor, Tensor]:
    return torch.randn(2, length, 16), torch.rand(2, length) < 0.8


def exported(module: nn.Module, strict: bool) -> Any:
    length = Dim("length", min=2, max=512)
    shapes = {"x": {1: length}, "mask": {1: length}}
    return torch.export.export(module, arguments(9), dynamic_shapes=shapes, strict=strict)


@pytest.mark.parametrize("strict", [True, False])
def test_other_lengths(strict: bool) -> None:
    module = Attention(sliding_causal(4)).eval()
    program = exported(module, strict)
    assert "headwise.attend" in str(program.graph)
    for length in (3, 9, 130):
        given = arguments(length)
        assert_same_bits(program.module()(*given), module(*given))


@pytest.mark.parametrize("strict", [True, False])
def test_tensors_of_a_pattern_are_constants(strict: bool) -> None:
    documents = hw.Documents(torch.arange(600) // 5)
    module = Attention(documents & hw.Causal()).eval()
    program = exported(module, strict)
    for length in (9, 130):
        given = arguments(length)
        assert_same_bits(program.module()(*given), module(*given))


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_learns(strict: bool) -> None:
    module = Attention(hw.Causal())
    program = exported(module, strict).module()
    given = arguments(11)
    module(*given).square().sum().backward()
    wanted = [weight.grad for weight in module.parameters()]
    module.zero_grad()
    program(*given).square().sum().backward()
    found = [weight.grad for weight in program.parameters()]
    for one, other in zip(found, wanted, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other)


def test_make_fx_records_the_operator() -> None:
    def causal(x: Tensor, lengths: Tensor) -> Tensor:
        return hw.attend(x, x, x, hw.Causal() & hw.Lengths(lengths), backend="native")

    x, y = torch.randn(2, 2, 2, 5, 8).unbind(0)
    graph = make_fx(causal)(x, torch.tensor([2, 5]))
    other = torch.tensor([4, 1])
    assert_same_bits(graph(y, other), causal(y, other))


def test_fake_tensors() -> None:
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(2, 3, 5, 8, dtype=torch.bfloat16)
        found = hw.attend_with_lse(x, x, x, hw.Causal() & hw.KeyMask(torch.ones(2, 5) > 0))
    assert found.output.shape == x.shape
    assert found.output.dtype == torch.bfloat16
    assert found.lse.dtype == torch.float32

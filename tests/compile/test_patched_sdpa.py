"""Patched calls in graphs: compiled whole, exported, with our operator in them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as early

import headwise as hw

MASK = torch.rand(5, 5) > 0.3
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "attribute": lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True),
    "earlier": lambda x: early(x, x[:, :1], x[:, :1], MASK.float(), enable_gqa=True),
}


def named(graphs: list[Any]) -> list[str]:
    """Return the operators of attention in a number of graphs."""
    found = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    return [name for name in found if "attend" in name or "attention" in name]


class Whole:
    """A backend of torch.compile that keeps its graphs."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch._aot_autograd.utils import make_boxed_func

        def keep(lowered: Any, _: Any) -> Any:
            self.graphs.append(lowered)
            return make_boxed_func(lowered)

        return aot_autograd(fw_compiler=keep, bw_compiler=keep)(graph, inputs)


@pytest.mark.parametrize("call", CALLS)
def test_compiled_whole(call: str) -> None:
    """Graphs follow the switch: what it finds compiled is compiled again."""
    torch._dynamo.reset()
    run, seen = CALLS[call], Whole()
    x = torch.randn(2, 3, 5, 8, requires_grad=True)
    compiled = torch.compile(run, backend=seen, fullgraph=True)
    wanted = compiled(x)
    before = len(seen.graphs)
    assert "headwise.attend.default" not in named(seen.graphs)
    with hw.patch.sdpa():
        found = compiled(x)
        assert named(seen.graphs[before:]) == ["headwise.attend.default"]
        found.sum().backward()  # type: ignore[no-untyped-call]
        assert "headwise.attend_backward.default" in named(seen.graphs[before:])
    torch.testing.assert_close(found, wanted)
    after = len(seen.graphs)
    compiled(x)
    assert "headwise.attend.default" not in named(seen.graphs[after:])


class Calling(nn.Module):
    """A module around a call."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_with_a_length_that_is_left_open(strict: bool) -> None:
    module = Calling(CALLS["attribute"])
    with hw.patch.sdpa():
        program = export(
            module, (torch.randn(2, 3, 5, 8),), dynamic_shapes=({2: Dim("length")},), strict=strict
        )
    assert named([program]) == ["headwise.attend.default"]
    longer = torch.randn(2, 3, 11, 8)
    torch.testing.assert_close(program.module()(longer), module(longer))


def test_what_is_refused_stays_torchs_in_a_graph() -> None:
    torch._dynamo.reset()
    seen = Whole()
    with hw.patch.sdpa():
        torch.compile(CALLS["attribute"], backend=seen, fullgraph=True)(
            torch.randn(2, 3, 5, 8, dtype=torch.float64)
        )
    assert named(seen.graphs) == ["aten._scaled_dot_product_flash_attention_for_cpu.default"]

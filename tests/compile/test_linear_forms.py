"""Linear attention in a graph: in chunks and token by token, with gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from tests.support.linear import assert_near

pytestmark = pytest.mark.slow


def leaves(length: int) -> tuple[Tensor, ...]:
    shapes = (1, 4, length, 3), (1, 2, length, 3), (1, 2, length, 5)
    return tuple(torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)


class Attending(nn.Module):
    """A call with a decay and padding, and one more that goes on from its state."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> Tensor:
        first = hw.linear_attend(
            query,
            key,
            value,
            feature_map="elu",
            causal=True,
            decay=0.9,
            kv_mask=real,
            backend=self.form,
        )
        then = hw.linear_attend(
            query, key, value, feature_map="elu", state=first.state, backend=self.form
        )
        return torch.cat([first.output, then.output], -1)


@pytest.mark.parametrize("form", ["chunked", "recurrent"])
def test_a_graph_computes_the_same(form: str) -> None:
    module, real = Attending(form), torch.tensor([[True, False, True, True]])
    compiled: Callable[..., Tensor] = torch.compile(module, fullgraph=True, backend="aot_eager")
    given = leaves(4)
    found, wanted = compiled(*given, real), module(*given, real)
    assert_near(found, wanted)
    pairs = zip(
        *(torch.autograd.grad(x.square().sum(), given) for x in (found, wanted)), strict=True
    )
    for number, (a, b) in enumerate(pairs):
        assert_near(a, b, f"gradient {number}")


def test_a_graph_for_any_length() -> None:
    def ran(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return hw.linear_attend(
            query, key, value, feature_map="elu", causal=True, backend="chunked"
        ).output

    compiled = torch.compile(ran, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (130, 260):
        given = tuple(leaf.detach() for leaf in leaves(length))
        assert_near(compiled(*given), ran(*given), f"{length} tokens")


def test_an_exported_call() -> None:
    module, real = Attending("chunked"), torch.tensor([[True, False, True, True]])
    given = tuple(leaf.detach() for leaf in leaves(4))
    exported = torch.export.export(module, (*given, real)).module()
    assert_near(exported(*given, real), module(*given, real))

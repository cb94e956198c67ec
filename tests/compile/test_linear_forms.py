"""Linear attention in a graph: in chunks and token by token, with gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from tests.support.budget import assert_within_budget
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


class Carrying(nn.Module):
    """A call that takes a state and returns one."""

    def __init__(self, feature_map: object) -> None:
        super().__init__()
        self.feature_map = feature_map

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, state: hw.LinearState
    ) -> tuple[Tensor, hw.LinearState]:
        return tuple(  # type: ignore[return-value]
            hw.linear_attend(
                query, key, value, feature_map=self.feature_map, causal=True, state=state
            )
        )


@pytest.mark.parametrize("kind", ["elu", "random"])
def test_a_saved_graph_takes_and_returns_a_state(kind: str, tmp_path: Path) -> None:
    query, key, value = (torch.randn(1, 2, 5, 4) for _ in range(3))
    module = Carrying("elu" if kind == "elu" else hw.nn.RandomFeatures(8, 4))
    state = hw.linear_attend(query, key, value, feature_map=module.feature_map).state
    exported = torch.export.export(module, (query, key, value, state))
    torch.export.save(exported, tmp_path / "graph.pt2")
    loaded = torch.export.load(tmp_path / "graph.pt2").module()
    output, after = loaded(query, key, value, state)
    assert isinstance(after, hw.LinearState)
    plain, exact = (
        module(query, key, value, state),
        module(
            query.double(),
            key.double(),
            value.double(),
            hw.LinearState(*(x.double() for x in state)),
        ),
    )
    assert_within_budget(output, exact=exact[0], plain=plain[0], label="output")
    # At the scale of the graph: that of the definition is as near as float32 holds it.
    size = (after.log_scale.double() - exact[1].log_scale).exp()[..., None, None]
    assert_within_budget(
        after.sums * size.float(), exact=exact[1].sums, plain=plain[1].sums, label="state"
    )


@pytest.mark.parametrize("name", ["elu", "decay", "random", "float64"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_saved_layer(name: str, causal: bool, tmp_path: Path) -> None:
    mechanism: Any = hw.nn.LinearAttention("elu", decay=0.9 if name == "decay" and causal else None)
    if name == "random":
        mechanism = hw.nn.RandomFeatures(8)
    layer = hw.MultiHeadAttention(
        16, 4, pattern=hw.Causal() if causal else None, mechanism=mechanism
    ).eval()
    x = torch.randn(1, 5, 16)
    if name == "float64":
        layer, x = layer.double(), x.double()
    torch.export.save(torch.export.export(layer, (x,)), tmp_path / "graph.pt2")
    found = torch.export.load(tmp_path / "graph.pt2").module()(x)
    assert found.shape == x.shape
    assert_within_budget(found, exact=layer.double()(x.double()), plain=found, label=name)


def test_a_trained_decay_with_a_length_that_is_left_open() -> None:
    class Fading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.decay = nn.Parameter(torch.tensor([0.9, 0.99]))

        def forward(self, x: Tensor) -> Tensor:
            return hw.linear_attend(
                x, x, x, feature_map="elu", causal=True, decay=self.decay
            ).output

    module, x = Fading(), torch.randn(1, 2, 600, 4)
    length = torch.export.Dim("length", min=2, max=4096)
    exported = torch.export.export(module, (x,), dynamic_shapes=({2: length},)).module()
    for tokens in (600, 300, 7):
        given = x[:, :, :tokens]
        wanted = module.double()(given.double())
        plain = module.float()(given)
        assert_within_budget(exported(given), exact=wanted, plain=plain, label=f"{tokens}")

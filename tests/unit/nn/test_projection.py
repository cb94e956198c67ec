"""Linear layers inside a layer: whatever stands in their place is called."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import headwise as hw
from headwise.nn.projection import explain_projection, project
from tests.support.budget import assert_same_bits

PLACES = ("W_q", "W_k", "W_v", "W_o")


@pytest.fixture
def layer() -> hw.MultiHeadAttention:
    torch.manual_seed(0)
    return hw.MultiHeadAttention(64, 4, num_kv_heads=2, head_dim=80).eval()


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 131, 64)


class Doubled(nn.Linear):
    """A subclass with a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        """Return twice of it."""
        return 2 * super().forward(input)


class Beside(nn.Module):
    """An adapter of low rank beside a layer that stays."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both."""
        summed: Tensor = self.base(x) + self.up(self.down(x))
        return summed


def doubled(base: nn.Linear) -> nn.Linear:
    made = Doubled(base.in_features, base.out_features)
    made.load_state_dict(base.state_dict())
    return made


def with_forward(base: nn.Linear) -> nn.Linear:
    usual = base.forward
    base.forward = lambda x: 3 * usual(x)  # type: ignore[method-assign, assignment]
    return base


def with_hook(base: nn.Linear) -> nn.Linear:
    base.register_forward_hook(lambda module, args, output: output + 1)
    return base


def with_pre_hook(base: nn.Linear) -> nn.Linear:
    base.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    return base


CHANGES: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "subclass": doubled,
    "adapter": Beside,
    "forward": with_forward,
    "hook": with_hook,
    "pre-hook": with_pre_hook,
    "parametrized": parametrizations.orthogonal,
    "weight norm": parametrizations.weight_norm,
    "pruned": lambda base: prune.random_unstructured(base, "weight", 0.5),  # type: ignore[no-untyped-call]
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rows", [1, 131])
def test_what_stands_there_is_called(
    layer: hw.MultiHeadAttention, x: Tensor, place: str, change: str, rows: int
) -> None:
    x = x[:, :rows]
    with torch.no_grad():
        layer(x)
    setattr(layer, place, CHANGES[change](getattr(layer, place)))
    assert explain_projection(getattr(layer, place), x).library == "torch"
    called: list[object] = []

    class Called(nn.Module):
        """Calls another module, and counts."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            """Call it."""
            called.append(1)
            output: Tensor = self.inner(x)
            return output

    with torch.no_grad():
        found = layer(x)
        setattr(layer, place, Called(getattr(layer, place)))
        assert_same_bits(found, layer(x))
    assert called == [1]


def test_hooks_on_all_modules_are_heard(layer: hw.MultiHeadAttention, x: Tensor) -> None:
    heard: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: heard.append(module)
    )
    try:
        with torch.no_grad():
            layer(x)
    finally:
        handle.remove()
    assert [each for each in heard if isinstance(each, nn.Linear)] == [
        layer.W_q,
        layer.W_k,
        layer.W_v,
        layer.W_o,
    ]


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantised_linears_are_called(layer: hw.MultiHeadAttention, x: Tensor) -> None:
    quantised = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
        layer, {nn.Linear}, dtype=torch.qint8
    )
    assert type(quantised.W_q) is not nn.Linear
    with torch.no_grad():
        found, wanted = quantised(x), layer(x)
    assert 0 < (found - wanted).abs().max() < 0.1 * wanted.abs().max()


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
def test_an_activation_follows_plain_and_other_layers(x: Tensor, activation: str) -> None:
    plain, hooked = nn.Linear(64, 192), nn.Linear(64, 192)
    hooked.load_state_dict(plain.state_dict())
    hooked.register_forward_hook(lambda *_: None)
    with torch.no_grad():
        torch.testing.assert_close(project(plain, x, activation), project(hooked, x, activation))
    with pytest.raises((ValueError, KeyError), match="tanh"):
        project(plain, x, "tanh")


def test_explain_says_what_runs_and_counts_the_copies(
    layer: hw.MultiHeadAttention, x: Tensor
) -> None:
    with torch.no_grad(), hw.nn.projections("unpacked"):
        assert layer.explain(x).packed_bytes == 0
    layer.W_o.register_forward_hook(lambda *_: None)
    with torch.no_grad():
        before = layer.explain(x)
        layer(x)
        after = layer.explain(x)
    library = before.projections["W_q"].library
    assert library in ("onednn", "torch")
    assert after.packed_bytes == hw.nn.packed_bytes(layer)
    assert (after.packed_bytes > 0) == (library == "onednn")
    assert before.projections["W_o"].refusals["rows"] == ["hooks listen to it"]
    text = str(after)
    assert "W_o         torch.nn.functional.linear\nnot rows    hooks listen to it\n" in text
    assert text.splitlines()[-1].startswith("packed      ")
    assert text.endswith("of copies of weights")
    with torch.no_grad():
        one = layer.explain(x[:1, :1]).projections["W_q"]
    assert (one.library, one.packed) == ("rows", False)


def test_explain_takes_the_gradients_that_forward_would() -> None:
    """An adapter that learns, beside weights that do not, wants a gradient of what follows it."""
    layer = hw.MultiHeadAttention(64, 4, head_dim=80).eval().requires_grad_(False)
    x = torch.randn(2, 131, 64)
    assert layer.explain(x).attention.backward_flops == 0  # type: ignore[union-attr]
    assert "a gradient is wanted" not in str(layer.explain(x))
    plan = layer.explain(x.clone().requires_grad_())
    assert plan.attention.backward_flops > 0  # type: ignore[union-attr]
    assert {each.library for each in plan.projections.values()} == {"torch"}
    adapter = Beside(layer.W_q)
    layer.W_q = adapter  # type: ignore[assignment]
    adapter.up.requires_grad_()
    plan = layer.explain(x)
    assert plan.projections["W_o"].refusals["onednn"] == ["a gradient is wanted"]
    assert plan.projections["W_k"].refusals["onednn"] == []


def test_explain_looks_at_no_numbers() -> None:
    """What lay in the memory before decided which backend a plan named."""
    layer = hw.MultiHeadAttention(64, 4, pattern=hw.Causal() & hw.Window(3, 0)).double().eval()
    x = torch.randn(2, 33, 64, dtype=torch.float64)
    for _ in range(20):
        torch.full((2, 33, 64), torch.nan, dtype=torch.float64)
        assert layer.explain(x).attention.backend == "sdpa"  # type: ignore[union-attr]


def test_explain_of_a_step_counts_the_cache() -> None:
    layer, cache = hw.MultiHeadAttention(64, 4, pattern=hw.Causal()).eval(), hw.KVCache()
    with torch.no_grad():
        layer(torch.randn(2, 100, 64), cache=cache)
        plan = layer.explain(torch.randn(2, 1, 64), cache=cache)
    assert plan.attention.flops == 4 * 2 * 4 * 101 * 16
    assert cache.length() == 100
    assert "projections headwise's kernel for few rows\n" in str(plan)

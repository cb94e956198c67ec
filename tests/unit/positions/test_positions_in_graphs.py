"""Compiled and exported positions are those of eager calls."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

from headwise.positions import Learned, Rotary, Sinusoidal
from tests.support.budget import assert_within_budget

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}
LONG = {
    "rope_type": "longrope",
    "factor": 4.0,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [3.0, 4.0, 5.0, 6.0],
    "original_max_position_embeddings": 8,
}
SCHEMES: dict[str, Any] = {
    "halves": lambda: Rotary(8),
    "pairs": lambda: Rotary(11, rotary_dim=8, interleaved=True),
    "dynamic": lambda: Rotary(8, scaling=DYNAMIC),
    "longrope": lambda: Rotary(8, scaling=LONG),
    "sinusoidal": lambda: Sinusoidal(8),
    "learned": lambda: Learned(40, 8, offset=2),
}
CALLS: list[tuple[int, Any]] = [
    (5, 0),
    (6, 3),
    (13, 2),
    (7, torch.tensor([1, -4])),
    (9, torch.tensor([0, 3])),
]


def tokens(scheme: Any, length: int) -> Tensor:
    if isinstance(scheme, Rotary):
        return torch.randn(2, 3, length, scheme.head_dim, requires_grad=True)
    return torch.randn(2, length, scheme.d_model, requires_grad=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_compiled(name: str) -> None:
    check_compiled(name, "inductor", CALLS)


@pytest.mark.parametrize("name", ["halves", "longrope", "learned"])
def test_traced_as_a_compiler_does(name: str) -> None:
    check_compiled(name, "aot_eager", CALLS[2:4])


def check_compiled(name: str, backend: str, calls: list[tuple[int, Any]]) -> None:
    """Compare values and gradients of one compiled object, call after call."""
    torch._dynamo.reset()
    scheme = SCHEMES[name]()
    compiled: Any = torch.compile(scheme, fullgraph=True, backend=backend)
    for length, offset in calls:
        x = tokens(scheme, length)
        exact = scheme(x.double(), offset)
        plain, found = scheme(x, offset), compiled(x, offset)
        assert_within_budget(found, exact=exact, plain=plain, label=f"{name} {length}")
        weights = torch.linspace(-1, 1, x.numel()).view(x.shape)
        (right,) = torch.autograd.grad((exact * weights).sum(), x)
        (usual,) = torch.autograd.grad((plain * weights).sum(), x)
        (mine,) = torch.autograd.grad((found * weights).sum(), x)
        assert_within_budget(mine, exact=right, plain=usual, label=f"{name} {length} gradient")


@pytest.mark.parametrize("name", SCHEMES)
def test_exported(name: str) -> None:
    scheme: nn.Module = SCHEMES[name]()
    axis = tokens(scheme, 5).ndim - 2
    shapes = {"x": {axis: Dim("length", min=2, max=40)}}
    program = torch.export.export(
        scheme, (tokens(scheme, 5).detach(),), dynamic_shapes=shapes, strict=False
    )
    for length in (2, 5, 19):
        x = tokens(scheme, length).detach()
        exact, plain = scheme(x.double()), scheme(x)
        found = program.module()(x)
        assert_within_budget(found, exact=exact, plain=plain, label=f"{name} {length}")


@pytest.mark.parametrize("name", SCHEMES)
def test_fake_tensors_leave_nothing_behind(name: str) -> None:
    scheme = SCHEMES[name]()
    if isinstance(scheme, Learned):
        scheme = scheme.to("meta")
    with FakeTensorMode(allow_non_fake_inputs=True):
        device = "meta" if isinstance(scheme, Learned) else "cpu"
        x = torch.empty(tokens(scheme, 5).shape, device=device)
        assert scheme(x, 3).shape == x.shape
    if not isinstance(scheme, Learned):
        assert scheme(tokens(scheme, 5), 3).isfinite().all()


def test_a_compiled_position_past_the_last_is_refused_by_torch() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(Learned(10, 8), fullgraph=True, backend="aot_eager")
    with pytest.raises((IndexError, RuntimeError)):
        compiled(torch.zeros(2, 3, 8), torch.tensor([0, 8]))

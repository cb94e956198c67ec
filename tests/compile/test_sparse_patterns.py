"""Sparse patterns in exported programs and under vmap; grown caches in compiled steps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.func import vmap
from torch.utils.flop_counter import FlopCounterMode
from typing_extensions import override

import headwise as hw
from headwise.patterns import Fixed, Pattern, Tiles, bigbird, longformer
from tests.compile.patterns_of_calls import FIXED, SIZES
from tests.support.budget import assert_same_bits
from tests.support.shapes import Inputs, Sizes, inputs

# torch's own modules warn when they are first used.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]

Build = Callable[[Tensor], Pattern]


class Attention(nn.Module):
    """A layer whose pattern comes from what a program is given."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self.layer, self.build = hw.MultiHeadAttention(16, 4, num_kv_heads=2), build

    @override
    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        found: Tensor = self.layer(x, pattern=self.build(chosen))
        return found


BUILDS: dict[str, Build] = {
    "global tokens": lambda chosen: hw.GlobalTokens(chosen) | hw.Window(2, 2),
    "longformer for all": lambda chosen: longformer(4, chosen[0]),
    "heads": lambda chosen: hw.PerHead(
        [hw.Causal(), hw.GlobalTokens(chosen), hw.KeyMask(chosen), bigbird(4)]
    ),
    "tiles of single pairs": lambda chosen: Tiles(
        chosen[:, None, None] & chosen[:, None, :, None], 1
    ),
    "bigbird": lambda chosen: bigbird(4, seed=2) & hw.KeyMask(chosen),
    "strides": lambda chosen: (hw.Strided(5) | Fixed(7, 2)) & hw.Causal() & hw.KeyMask(chosen),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", BUILDS)
def test_exported_for_all_lengths(name: str, strict: bool) -> None:
    module, length = Attention(BUILDS[name]).eval(), Dim("length", min=2, max=512)

    def arguments(tokens: int) -> tuple[Tensor, Tensor]:
        return torch.randn(2, tokens, 16), torch.rand(2, tokens) < 0.4

    shapes = {"x": {1: length}, "chosen": {1: length}}
    program = torch.export.export(module, arguments(9), dynamic_shapes=shapes, strict=strict)
    assert "headwise.attend" in str(program.graph)
    for tokens in (3, 9, 130):
        given = arguments(tokens)
        with FlopCounterMode(display=False):  # which keeps strides in one piece, as a graph does
            wanted = module(*given)
        assert_same_bits(program.module()(*given), wanted)


@pytest.mark.parametrize("name", ["strides", "fixed", "blocks", "bigbird", "heads"])
def test_the_reference_in_a_graph(name: str) -> None:
    torch._dynamo.reset()
    given = inputs(SIZES, dtype=torch.float64)

    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attend(q, k, v, FIXED[name], backend="reference")

    compiled = torch.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*given), program(*given))


COPIES = 3
FLAGS = torch.rand(COPIES, 2, 7, generator=torch.Generator().manual_seed(1)) < 0.5
CHOSEN = torch.rand(COPIES, 2, 4, 3, 2, generator=torch.Generator().manual_seed(2)) < 0.6
MANY = Inputs(
    *(
        torch.stack([inputs(Sizes(2, 2, 2, 5, 7, 8, 6), seed=n)[part] for n in range(COPIES)])
        for part in range(3)
    )
)
MAPPED: dict[str, tuple[Build, Tensor]] = {
    "global tokens": (lambda m: hw.GlobalTokens(m) | hw.Window(1, 1), FLAGS),
    "global tokens for all": (lambda m: hw.GlobalTokens(m) | hw.Causal(), FLAGS[:, 0]),
    "global tokens of one": (lambda m: longformer(2, m), FLAGS[:, :1]),
    "tiles": (lambda m: Tiles(m, (2, 4)), CHOSEN),
    "tiles for all heads": (lambda m: Tiles(m, (2, 4)) & hw.Causal(), CHOSEN[:, :, :1]),
    "tiles for all": (lambda m: Tiles(m, (2, 4)) | hw.Causal(), CHOSEN[:, 0, 0]),
    "heads": (
        lambda m: hw.PerHead([hw.KeyMask(m), hw.GlobalTokens(m), hw.Causal(), bigbird(2)]),
        FLAGS,
    ),
}


@pytest.mark.parametrize("name", MAPPED)
def test_patterns_of_mapped_tensors(name: str) -> None:
    build, numbers = MAPPED[name]

    def program(backend: str) -> Callable[..., Tensor]:
        return lambda q, k, v, m: hw.attend(q, k, v, build(m), backend=backend)

    def gradient(backend: str) -> Callable[..., Any]:
        return torch.func.grad(lambda *given: program(backend)(*given).square().sum(), (0, 1, 2))

    found = vmap(program("native"))(*MANY, numbers)
    derived = vmap(gradient("native"))(*MANY, numbers)
    for copy in range(COPIES):
        one = [tensor[copy] for tensor in (*MANY, numbers)]
        torch.testing.assert_close(found[copy], program("reference")(*one))
        for part, wanted in zip(derived, gradient("reference")(*one), strict=True):
            torch.testing.assert_close(part[copy], wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("pattern", [bigbird(2, seed=5), longformer(2, [0, 3])], ids=repr)
def test_a_map_over_calls_with_the_same_pattern(pattern: Pattern) -> None:
    found = vmap(lambda q, k, v: hw.attend(q, k, v, pattern, backend="native"))(*MANY)
    for copy in range(COPIES):
        one = Inputs(*(tensor[copy] for tensor in MANY))
        torch.testing.assert_close(found[copy], hw.attend(*one, pattern, backend="reference"))


def test_positions_that_differ_by_copy_are_refused() -> None:
    def program(x: Tensor, tokens: Tensor) -> Tensor:
        return hw.attend(x, x, x, hw.GlobalTokens(tokens), backend="native")

    with pytest.raises(hw.PatternError, match="positions that differ by sample are given as bool"):
        vmap(program)(torch.randn(2, 1, 2, 5, 8), torch.tensor([[0, 1], [2, 3]]))

"""What a pattern allows is what its ONNX file allows, at every length; no rule gets lost."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from typing_extensions import override

import headwise as hw
from headwise.patterns import Fixed, GlobalBlocks, Pattern, bigbird, longformer, sliding_causal
from tests.compile.patterns_of_calls import FIXED
from tests.export.sessions import Session, session
from tests.support.budget import assert_within_budget

Builder = Callable[["Data"], Pattern]


class Data:
    """Tensors of one call, from which patterns are built inside the graph."""

    def __init__(self, mask: Tensor, lengths: Tensor, ids: Tensor) -> None:
        self.mask, self.lengths, self.ids = mask, lengths, ids


BUILDERS: dict[str, Builder] = {
    "causal & dilated": lambda d: hw.Causal() & hw.Window(2, None, 3),
    "sliding | global": lambda d: sliding_causal(3) | longformer(2, [0, 3]),
    "strided & documents": lambda d: hw.Strided(4) & hw.Documents(d.ids),
    "fixed & key mask": lambda d: Fixed(5, 2) & hw.KeyMask(d.mask),
    "blocks & prefix": lambda d: hw.BlockWindow(3, 1, 0) & (hw.Prefix(d.lengths) | hw.Causal()),
    "global blocks & lengths": lambda d: (
        (GlobalBlocks(2, 1, 1) | hw.Window(0, 0)) & hw.Lengths(d.lengths, d.lengths)
    ),
    "bigbird": lambda d: bigbird(2, seed=3, length=40),
    "heads & key mask": lambda d: (
        hw.PerHead([hw.Causal(), hw.Window(0, 2), longformer(2, [1]), hw.Full()])
        & hw.KeyMask(d.mask)
    ),
    "lengths": lambda d: hw.Lengths(d.lengths),
    "flags & not a window": lambda d: (
        (hw.GlobalTokens(~d.mask) | hw.Window(1, 1)) & ~hw.Window(0, 0)
    ),
    "dense": lambda d: hw.Dense(d.mask[:, None, :, None] & d.mask[:1, None, None, :]),
    "causal": lambda d: hw.Causal(),
}


class Calls(nn.Module):
    """One call for each pattern."""

    def __init__(self, builders: dict[str, Builder]) -> None:
        super().__init__()
        self.builders = builders

    @override
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, lengths: Tensor, ids: Tensor
    ) -> list[Tensor]:
        data = Data(mask, lengths, ids)
        return [
            hw.attend(query, key, value, build(data), backend="native")
            for build in self.builders.values()
        ]


def heads(batch: int, q_len: int, kv_len: int) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(batch, 4, q_len, 8),
        torch.randn(batch, 2, kv_len, 8),
        torch.randn(batch, 2, kv_len, 5),
    )


def given(batch: int, length: int) -> tuple[Tensor, ...]:
    mask = torch.rand(batch, length) < 0.7
    mask[0] = False
    return (
        *heads(batch, length, length),
        mask,
        torch.randint(0, length + 1, (batch,)),
        torch.randint(-1, 3, (batch, length)),
    )


@pytest.fixture(scope="module")
def exported() -> Session:
    size = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC}
    by_token = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    shapes = (size, size, size, by_token, {0: Dim.DYNAMIC}, by_token)
    return session(Calls(BUILDERS), given(3, 7), shapes)


def asked(pattern: Pattern, heads: Sequence[Tensor]) -> Tensor:
    query, key, value = heads
    return hw.attend(query, key, value, pattern, backend="reference")


def exactly(pattern: Pattern, heads: Sequence[Tensor]) -> Tensor:
    return asked(pattern, [tensor.double() for tensor in heads])


@pytest.mark.parametrize(("batch", "length"), [(3, 7), (1, 1), (2, 13), (4, 31)])
def test_patterns_at_every_length(exported: Session, batch: int, length: int) -> None:
    tensors = given(batch, length)
    unmasked = asked(hw.Full(), tensors[:3])
    told = 0
    for (name, build), found in zip(BUILDERS.items(), exported(*tensors), strict=True):
        pattern = build(Data(*tensors[3:]))
        plain = asked(pattern, tensors[:3])
        assert_within_budget(
            found, exact=exactly(pattern, tensors[:3]), plain=plain, label=f"{name} at {length}"
        )
        if not pattern.dense(length, length).all():
            assert not torch.allclose(found, unmasked), f"{name} is lost at {length}"
            told += 1
    assert told > 0.8 * len(BUILDERS) or length == 1


def test_attention_is_the_standard_operator(exported: Session) -> None:
    assert exported.nodes.count("Attention") == len(BUILDERS)


ONE_LENGTH = (
    *("bigbird", "heads", "key mask for all", "dense", "tiles and their shapes", "heads apart"),
)


def _always(pattern: Pattern, data: Data) -> Pattern:
    del data
    return pattern


def _held(name: str) -> Pattern:
    pattern = FIXED[name]
    return hw.Full() if pattern is None else pattern


def test_patterns_of_one_length() -> None:
    """At one length every pattern is exported, with its tensors inside."""
    builders: dict[str, Builder] = {name: partial(_always, _held(name)) for name in ONE_LENGTH}
    tensors = given(2, 7)
    found = session(Calls(builders), tensors)(*tensors)
    for name, output in zip(builders, found, strict=True):
        pattern = _held(name)
        plain = asked(pattern, tensors[:3])
        exact = exactly(pattern, tensors[:3])
        assert_within_budget(output, exact=exact, plain=plain, label=name)

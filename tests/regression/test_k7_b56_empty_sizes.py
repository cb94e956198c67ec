"""B56: sizes of zero crashed the process."""

import pytest
import torch

import headwise as hw
from tests.support.paths import Path, on_exact, on_layers
from tests.support.shapes import Inputs, Sizes, inputs

EMPTY = {
    "no queries": Sizes(q_len=0),
    "no keys": Sizes(kv_len=0),
    "no samples": Sizes(batch=0),
    "no heads": Sizes(kv_heads=0),
    "no head_dim": Sizes(head_dim=0),
    "no value_dim": Sizes(value_dim=0),
    "nothing": Sizes(0, 0, 1, 0, 0, 0, 0),
    "no keys for groups": Sizes(group=2, kv_len=0),
    "no samples of groups": Sizes(batch=0, group=2),
}
PATTERNS = [None, hw.Causal(), hw.Lengths(3), hw.Causal() & ~hw.Window(1, 1)]
on_empty = pytest.mark.parametrize("sizes", EMPTY.values(), ids=EMPTY.keys())
on_patterns = pytest.mark.parametrize("pattern", PATTERNS, ids=repr)


@on_exact
@on_empty
@on_patterns
def test_forward(path: Path, sizes: Sizes, pattern: hw.patterns.Pattern | None) -> None:
    s, given = sizes, inputs(sizes)
    with path.taken() as backend:
        found = hw.attend_with_lse(*given, pattern, backend=backend)
        assert torch.equal(hw.attend(*given, pattern, backend=backend), found.output)
    assert found.output.shape == (s.batch, s.heads, s.q_len, s.value_dim)
    assert found.lse.shape == (s.batch, s.heads, s.q_len)
    if s.kv_len == 0:
        assert (found.output == 0).all()
        assert (found.lse == float("-inf")).all()
    assert found.output.isfinite().all()


@on_empty
@on_patterns
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_backward(sizes: Sizes, pattern: hw.patterns.Pattern | None, backend: str) -> None:
    free = Inputs(*(t.requires_grad_() for t in inputs(sizes)))
    output = hw.attend(*free, pattern, backend=backend)
    for tensor, gradient in zip(free, torch.autograd.grad(output.sum(), free), strict=True):
        assert gradient.shape == tensor.shape
        assert gradient.isfinite().all()
        if sizes.kv_len == 0:
            assert (gradient == 0).all()


@on_empty
@on_patterns
def test_weights_and_auto(sizes: Sizes, pattern: hw.patterns.Pattern | None) -> None:
    s, given = sizes, inputs(sizes)
    weights = hw.attention_weights(*given[:2], pattern)
    assert weights.shape == (s.batch, s.heads, s.q_len, s.kv_len)
    bias = torch.zeros(s.batch, s.heads, s.q_len, s.kv_len)
    output = hw.attend(*given, pattern, bias=bias)
    assert output.shape == (s.batch, s.heads, s.q_len, s.value_dim)


@on_exact
@pytest.mark.parametrize("sizes", [Sizes(q_len=0), Sizes(kv_len=0), Sizes(kv_heads=0)], ids=str)
def test_other_numbers_of_dimensions(path: Path, sizes: Sizes) -> None:
    given = inputs(sizes)
    with path.taken() as backend:
        wanted = hw.attend(*given, backend=backend)
        three = hw.attend(*Inputs(*(t[0] for t in given)), backend=backend)
        five = hw.attend(*Inputs(*(t[None] for t in given)), backend=backend)
        many = Inputs(*(t.expand(0, *t.shape) for t in given))
        none = hw.attend_with_lse(*many, backend=backend)
    assert torch.equal(three, wanted[0])
    assert torch.equal(five, wanted[None])
    assert none.output.shape == (0, *wanted.shape)
    assert none.lse.shape == (0, *wanted.shape[:-1])


@pytest.mark.parametrize(
    "pattern", [hw.Lengths([]), hw.KeyMask(torch.ones(0, 7)), hw.Dense(torch.ones(0, 1, 1, 7))]
)
def test_patterns_of_no_samples(pattern: hw.patterns.Pattern) -> None:
    given = inputs(Sizes(batch=0))
    assert hw.attend(*given, pattern).shape == (0, 3, 5, 13)
    assert hw.attend(*given, pattern & hw.Causal()).shape == (0, 3, 5, 13)


@on_layers
def test_layers(path: Path) -> None:
    layer = hw.MultiHeadAttention(8, 2)
    with path.taken():
        for batch, q_len, kv_len in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
            x, memory = torch.randn(batch, q_len, 8), torch.randn(batch, kv_len, 8)
            assert layer(x, memory).shape == (batch, q_len, 8)
            assert layer(x).shape == (batch, q_len, 8)

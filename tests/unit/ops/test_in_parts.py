"""Calls that are taken apart by residue class do run so, whatever stands beside a row."""

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.ops.softmax import native
from headwise.ops.softmax.call import Call, Computed
from headwise.patterns import Pattern
from tests.support.budget import assert_same_bits

STRIDED = hw.Strided(16) & hw.Causal()
DILATED = hw.Window(64, 64, 3)


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the queries that the kernels were given."""
    found: list[tuple[int, ...]] = []
    attend = native._attend

    def watched(call: Call) -> Computed:
        found.append(tuple(call.query.shape))
        return attend(call)

    monkeypatch.setattr(native, "_attend", watched)
    return found


def query(length: int) -> Tensor:
    return torch.randn(2, 1, length, 8)


@pytest.mark.parametrize(
    ("pattern", "length", "wanted"),
    [
        (STRIDED, 2048, [(2, 1, 2048, 8), (32, 1, 128, 8)]),
        (STRIDED, 2050, [(2, 1, 2050, 8), (32, 1, 129, 8)]),
        (STRIDED, 100, [(2, 1, 100, 8), (32, 1, 17, 8)]),
        (STRIDED, 16, [(2, 1, 16, 8)]),
        (DILATED, 511, [(6, 1, 171, 8)]),
        (hw.Causal(), 2048, [(2, 1, 2048, 8)]),
        (hw.Window(16, 16, 2), 300, [(2, 1, 300, 8)]),
        (STRIDED & hw.Strided(5), 300, [(2, 1, 300, 8)]),
    ],
)
def test_what_the_kernels_are_given(
    shapes: list[tuple[int, ...]], pattern: Pattern, length: int, wanted: list[tuple[int, ...]]
) -> None:
    x = query(length)
    hw.attend(x, x, x, pattern, backend="native")
    assert shapes == wanted
    steps = hw.explain(x, x, x, pattern).steps
    assert steps == tuple(shape[0] // 2 for shape in wanted)


def test_16_bits_are_not_rounded_once_more(shapes: list[tuple[int, ...]]) -> None:
    x = query(200).bfloat16()
    hw.attend(x, x, x, STRIDED)
    hw.attend(x, x, x, DILATED)
    assert [shape[0] for shape in shapes] == [2, 6]


@pytest.mark.parametrize("pattern", [STRIDED, DILATED, hw.Window(900, 300, 2) | hw.GlobalTokens(0)])
def test_padding_and_other_samples_change_no_bit(pattern: Pattern) -> None:
    x = query(300)
    whole = hw.attend(x, x, x, pattern & hw.Lengths((300, 211)))
    for sample, length in ((0, 300), (1, 211)):
        alone = x[sample : sample + 1, :, :length]
        found = hw.attend(alone, alone, alone, pattern)
        assert_same_bits(whole[sample : sample + 1, :, :length], found)
    moved = hw.attend(x, x, x, pattern, q_offset=torch.tensor([2, 9]), kv_offset=0)
    for sample, offset in ((0, 2), (1, 9)):
        alone = x[sample : sample + 1]
        found = hw.attend(alone, alone, alone, pattern, q_offset=offset, kv_offset=0)
        assert_same_bits(moved[sample : sample + 1], found)


@pytest.mark.parametrize("pattern", [STRIDED, DILATED])
@pytest.mark.parametrize(
    ("batch", "heads", "kv_len", "value_dim"),
    [(0, 2, 20, 8), (2, 0, 20, 8), (2, 2, 0, 8), (2, 2, 20, 0), (2, 2, 3, 8)],
)
def test_sizes_of_zero(
    pattern: Pattern, batch: int, heads: int, kv_len: int, value_dim: int
) -> None:
    sizes = ((20, 8), (kv_len, 8), (kv_len, value_dim))
    q, k, v = (torch.randn(batch, heads, *size, requires_grad=True) for size in sizes)
    found = hw.attend(q, k, v, pattern, backend="native")
    assert found.shape == (batch, heads, 20, value_dim)
    gradients = torch.autograd.grad(found.sum(), (q, k, v))
    assert [tuple(g.shape) for g in gradients] == [tuple(t.shape) for t in (q, k, v)]
    if not kv_len:
        assert not found.any()


def test_a_call_with_more_than_a_pattern_stays_whole(shapes: list[tuple[int, ...]]) -> None:
    x = query(2048)
    for added in (
        {"bias": hw.positions.Alibi(1)},
        {"bias": torch.zeros(1, 1, 1, 2048)},
        {"sinks": torch.zeros(1)},
        {"dropout_p": 0.1},
    ):
        hw.attend(x, x, x, STRIDED, **added)
    assert shapes == [(2, 1, 2048, 8)] * 4

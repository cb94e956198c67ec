"""B40: a pattern was built for the longest length instead of the actual one."""

import pytest
import torch

import headwise as hw
from headwise.patterns import GlobalBlocks, Pattern, RandomBlocks, bigbird
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_all_once, on_layers
from tests.support.shapes import Sizes, inputs


def spelled(length: int) -> torch.Tensor:
    """Blocks of two: the first and the last see all and are seen, others see their neighbours."""
    block = torch.arange(length) // 2
    last = (length - 1) // 2
    near = (block.view(-1, 1) - block).abs() <= 1
    ends = (block == 0) | (block == last)
    return near | ends | ends.view(-1, 1)


@on_all
@pytest.mark.parametrize("length", [16, 12, 8, 11, 3, 1])
def test_the_last_block_is_the_actual_one(path: Path, length: int) -> None:
    pattern = bigbird(2, random_blocks=0)
    given = inputs(Sizes(2, 2, 1, length, length, 8, 8))
    judged(path, *given, pattern, visible=spelled(length))


@on_layers
def test_one_layer_for_all_lengths(path: Path) -> None:
    """The same object serves 16, 12 and 8 tokens; what is kept of one is not used for another."""
    layer = hw.MultiHeadAttention(8, 2, pattern=bigbird(2, random_blocks=0)).eval()
    with path.taken(), torch.no_grad():
        for length in (16, 12, 8, 12, 16):
            x = torch.randn(1, length, 8)
            wanted = hw.MultiHeadAttention(8, 2)
            wanted.load_state_dict(layer.state_dict())
            torch.testing.assert_close(layer(x), wanted.eval()(x, mask=spelled(length)))


@on_all_once
def test_a_padded_sequence_says_how_long_it_is(path: Path) -> None:
    pattern = bigbird(2, random_blocks=0, length=12) & hw.Lengths(12, 12)
    visible = torch.zeros(16, 16, dtype=torch.bool)
    visible[:12, :12] = spelled(12)
    judged(path, *inputs(Sizes(2, 2, 1, 16, 16, 8, 8)), pattern, visible=visible)


@pytest.mark.parametrize(
    "pattern", [GlobalBlocks(2, 1, 1), RandomBlocks(2, 2, 5), bigbird(2), bigbird(3, seed=4)]
)
def test_a_length_written_down_equals_the_actual_one(pattern: Pattern) -> None:
    for length in (16, 12, 8, 7):
        found = pattern.dense(length, length)
        assert found.shape == (length, length)
        written = repr(pattern).replace("length=None", f"length={length}")
        fixed = eval(written, dict(vars(hw.patterns)))
        assert torch.equal(fixed.dense(length, length), found)

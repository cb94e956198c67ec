"""B34: "window W" meant W keys in one backend and W + 1 in another."""

import pytest
import torch

import headwise as hw
from headwise.patterns import Pattern, longformer, sliding_causal
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_layers
from tests.support.shapes import Sizes, inputs

GAP = torch.arange(6).view(-1, 1) - torch.arange(6)
BAND = (GAP >= 0) & (GAP < 4)
BOTH = GAP.abs() <= 2
BLOCKS = (
    torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1]]).repeat_interleave(2, 0).repeat_interleave(2, 1)
    > 0
)
COUNTED: list[tuple[Pattern, torch.Tensor, list[int]]] = [
    (sliding_causal(4), BAND, [1, 2, 3, 4, 4, 4]),
    (hw.Causal() & hw.Window(3, 0), BAND, [1, 2, 3, 4, 4, 4]),
    (hw.Causal() & hw.Window(3, 3), BAND, [1, 2, 3, 4, 4, 4]),
    (hw.Window(2, 2), BOTH, [3, 4, 5, 5, 4, 3]),
    (longformer(4), BOTH, [3, 4, 5, 5, 4, 3]),
    (longformer(5), BOTH, [3, 4, 5, 5, 4, 3]),
    (hw.Window(2, 0, dilation=2), (GAP >= 0) & (GAP <= 4) & (GAP % 2 == 0), [1, 1, 2, 2, 3, 3]),
    (hw.Strided(4) & hw.Causal(), BAND | (GAP == 4), [1, 2, 3, 4, 5, 5]),
    (hw.BlockWindow(2, 1, 0), BLOCKS, [2, 2, 4, 4, 4, 4]),
]


@on_all
@pytest.mark.parametrize(("pattern", "visible", "counts"), COUNTED, ids=lambda x: repr(x)[:40])
def test_keys_of_every_row(
    path: Path, pattern: Pattern, visible: torch.Tensor, counts: list[int]
) -> None:
    assert visible.sum(1).tolist() == counts
    given = inputs(Sizes(2, 2, 1, 6, 6, 8, 8))
    judged(path, *given, pattern, visible=visible)
    for row in range(6):
        one = given._replace(query=given.query[:, :, row : row + 1])
        judged(path, *one, pattern, visible=visible[row], q_offset=row)


@on_all
def test_the_last_row_sees_keys_two_to_five(path: Path) -> None:
    query, key, value = inputs(Sizes(2, 2, 1, 6, 6, 8, 8))
    with path.taken() as backend:
        wanted = hw.attend(query[:, :, 5:], key[:, :, 2:], value[:, :, 2:], backend=backend)
        found = hw.attend(query, key, value, sliding_causal(4), backend=backend)[:, :, 5:]
    torch.testing.assert_close(found, wanted)


@on_layers
def test_a_cache_counts_alike(path: Path) -> None:
    layer = hw.MultiHeadAttention(8, 2, pattern=sliding_causal(4)).eval()
    x = torch.randn(1, 6, 8)
    with path.taken(), torch.no_grad():
        whole = layer(x)
        cache = hw.KVCache()
        steps = [layer(x[:, step : step + 1], cache=cache) for step in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)

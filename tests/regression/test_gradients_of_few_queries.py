"""Few queries went through another kernel forwards than backwards, whose weights did not agree."""

import pytest
import torch

from tests.support.paths import Path, on_native_once
from tests.support.shapes import Inputs, Sizes
from tests.support.whole_calls import judged_whole, simple


@on_native_once
@pytest.mark.parametrize("q_len", [1, 2, 7, 16, 17])
def test_weights_of_both_ways_agree(path: Path, q_len: int) -> None:
    for head_dim in (64, 160):
        judged_whole(path, simple(Sizes(7, 3, 1, q_len, 47, head_dim, head_dim), scale=0.5))


@on_native_once
def test_scores_without_a_scale(path: Path) -> None:
    """Sums over a head_dim of 64 in one chain were 1.6 times over the budget."""
    source = torch.Generator().manual_seed(22)
    shapes = ((200, 1, 49, 64), (200, 1, 3, 64), (200, 1, 3, 1))
    given = Inputs(*(torch.randn(shape, generator=source) for shape in shapes))
    judged_whole(path, simple(Sizes(200, 1, 1, 49, 3, 64, 1), given=given, scale=1.0))


@on_native_once
@pytest.mark.parametrize("value_dim", [5, 24, 64, 160])
def test_one_key_gives_scores_no_gradient(path: Path, value_dim: int) -> None:
    """The weight is 1 whatever the score, so the exact gradient of query and key is 0."""
    judged_whole(path, simple(Sizes(5, 3, 1, 17, 1, 24, value_dim), softcap=20.0))

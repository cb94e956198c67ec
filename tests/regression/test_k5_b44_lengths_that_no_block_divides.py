"""B44: block-sparse kernels were wrong, or NaN in the gradient, in the last partial block."""

import pytest
import torch

import headwise as hw
from headwise.patterns import Fixed, GlobalBlocks, Pattern, Tiles, bigbird
from tests.support.budget import assert_within_budget
from tests.support.paths import Path, on_all_once
from tests.support.shapes import Sizes
from tests.support.whole_calls import judged_whole, simple

LOWER = torch.ones(2, 2).tril().bool()
PATTERNS: list[Pattern] = [
    hw.Causal(),
    Tiles(LOWER, (100, 128)) & hw.Causal(),
    hw.BlockWindow(128, 0, 0) & hw.Causal(),
    hw.BlockWindow(64, 1, 0) | GlobalBlocks(64, 1, 1),
    bigbird(32, seed=1) & hw.Causal(),
    hw.Strided(64) & hw.Causal(),
    Fixed(64, 8) & hw.Causal(),
    hw.Documents(torch.arange(200) // 60) & hw.Causal(),
    hw.PerHead([hw.Causal(), hw.Window(20, 20)]),
]


@on_all_once
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda x: repr(x)[:40])
@pytest.mark.parametrize(("q_len", "kv_len"), [(137, 137), (130, 200)])
def test_with_a_bias_that_grows_with_the_distance(
    path: Path, pattern: Pattern, q_len: int, kv_len: int
) -> None:
    gap = torch.arange(q_len).view(-1, 1) + kv_len - q_len - torch.arange(kv_len)
    call = simple(Sizes(1, 2, 1, q_len, kv_len, 16, 16), pattern=pattern, bias=0.05 * gap.float())
    found = judged_whole(path, call)
    for gradient in found:
        assert gradient is None or gradient.isfinite().all()
    exact = call.spelled(torch.float64)
    plain = call.plain(exact)
    for name in ("output", "d_query", "d_key", "d_value"):
        last = [getattr(side, name)[:, :, 128:] for side in (found, exact, plain)]
        assert_within_budget(last[0], exact=last[1], plain=last[2], label=f"{path} last {name}")

"""B76: dropout with closed rows gave NaN, and rates or factors off by one."""

import math

import pytest
import torch

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.paths import NATIVE, Path, on_all_once, on_exact_once
from tests.support.shapes import Inputs, Sizes
from tests.support.whole_calls import judged_whole, simple

OPEN = torch.ones(64, 64, dtype=torch.bool)
OPEN[5] = False
VALUES = torch.eye(64).expand(2, 2, 64, 64)


@on_all_once
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_output_of_one_hot_values_is_the_weights(path: Path, share: float) -> None:
    call = simple(Sizes(2, 2, 1, 64, 64, 16, 64))
    query, key, _ = call.given
    with path.taken() as backend:
        runs = []
        for _ in range(2):
            torch.manual_seed(3)
            runs.append(
                hw.attend(query, key, VALUES, hw.Dense(OPEN), dropout_p=share, backend=backend)
            )
    assert_same_bits(runs[1], runs[0])
    found, weights = runs[0], hw.attention_weights(query, key, hw.Dense(OPEN))
    assert (found[:, :, 5] == 0).all()
    if share == 1.0:
        assert (found == 0).all()
        return
    kept = found != 0
    torch.testing.assert_close(found[kept], weights[kept] / (1 - share))
    count = 2 * 2 * 63 * 64
    rate = kept.sum().item() / count
    assert abs(rate - (1 - share)) < 3 * math.sqrt(share * (1 - share) / count)


@on_exact_once
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_repeat_the_mask(path: Path, share: float, dtype: torch.dtype) -> None:
    call = simple(
        Sizes(2, 2, 2, 64, 64, 16, 24), dtype=dtype, pattern=hw.Dense(OPEN), dropout_p=share
    )
    found = judged_whole(path, call)
    assert (found.d_query[:, :, 5] == 0).all()
    if share == 1.0:
        assert (found.output == 0).all()
        assert (found.d_value == 0).all()


def test_every_path_drops_the_same_weights() -> None:
    """Few queries and many, the reference and each instruction set."""
    for q_len in (3, 64):
        query, key, _ = simple(Sizes(2, 2, 1, q_len, 64, 16, 64)).given
        dropped = []
        for path in (Path("reference"), *NATIVE):
            torch.manual_seed(3)
            with path.taken() as backend:
                output = hw.attend(query, key, VALUES, dropout_p=0.3, backend=backend)
            dropped.append(output == 0)
        for other in dropped[1:]:
            assert torch.equal(other, dropped[0])


@pytest.mark.parametrize("share", [-0.5, 1.5, float("nan")])
def test_other_shares_are_refused(share: float) -> None:
    given = Inputs(*torch.randn(3, 1, 1, 4, 8))
    with pytest.raises(ValueError, match="dropout_p must lie between 0 and 1"):
        hw.attend(*given, dropout_p=share)

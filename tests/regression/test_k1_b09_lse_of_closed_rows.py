"""B09: the log-sum-exp of a closed row was 0 in one kernel and -inf in another."""

import torch

import headwise as hw
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_exact
from tests.support.shapes import Sizes, inputs

VISIBLE = (torch.arange(140) >= 5)[:, None] & (torch.arange(140) < 100)
GIVEN = inputs(Sizes(1, 2, 1, 140, 140, 16, 16))


@on_all
def test_five_closed_rows_of_140(path: Path) -> None:
    output = judged(path, *GIVEN, hw.Dense(VISIBLE), visible=VISIBLE)
    assert (output[:, :, :5] == 0).all()


@on_exact
def test_their_log_sum_exp(path: Path) -> None:
    for rows in (slice(0, 140), slice(0, 9)):
        query = GIVEN.query[:, :, rows]
        with path.taken() as backend:
            lse = hw.attend_with_lse(
                query, *GIVEN[1:], hw.Dense(VISIBLE[rows]), backend=backend
            ).lse
        assert (lse[:, :, :5] == float("-inf")).all()
        assert lse[:, :, 5:].isfinite().all()

"""B24: a mask made for more keys than were given was read past its end."""

from collections.abc import Callable

import pytest
import torch

import headwise as hw
from tests.support.judge import judged
from tests.support.paths import Path, on_all
from tests.support.shapes import Sizes, inputs

MASK = torch.rand(10, 20, generator=torch.Generator().manual_seed(0)) < 0.5
SHORT = inputs(Sizes(q_len=10, kv_len=17))


@on_all
@pytest.mark.parametrize(
    "pattern",
    [
        lambda: hw.Dense(MASK),
        lambda: hw.Dense(MASK[:9, :17]),
        lambda: ~hw.Dense(MASK) | hw.Causal(),
        lambda: hw.KeyMask(MASK[0]),
        lambda: hw.Causal() & hw.KeyMask(MASK[:2]),
        lambda: hw.Documents(torch.zeros(16, dtype=torch.int64)),
    ],
)
def test_other_sizes_are_refused(path: Path, pattern: Callable[[], hw.patterns.Pattern]) -> None:
    with path.taken() as backend, pytest.raises(hw.PatternError, match=r"must|given for"):
        hw.attend(*SHORT, pattern(), backend=backend)


@on_all
def test_cropping_is_up_to_the_caller(path: Path) -> None:
    judged(path, *SHORT, hw.Dense(MASK[:, :17]), visible=MASK[:, :17])

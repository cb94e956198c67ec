"""B07: local attention with a length mask gave NaN always."""

import torch

import headwise as hw
from tests.support.judge import judged
from tests.support.paths import Path, on_all
from tests.support.shapes import Sizes, inputs


@on_all
def test_a_band_over_five_real_tokens_of_seven(path: Path) -> None:
    place = torch.arange(7)
    band = (place[:, None] - place).abs() <= 2
    visible = band & (place < 5)
    given = inputs(Sizes(1, 1, 1, 7, 7, 8, 8))
    pattern = hw.Window(2, 2) & hw.Lengths(5)
    output = judged(path, *given, pattern, visible=visible)
    assert output.isfinite().all()
    closed = hw.Window(2, 2) & hw.Lengths(5, 5)
    shut = judged(path, *given, closed, visible=visible & (place < 5)[:, None])
    assert (shut[:, :, 5:] == 0).all()

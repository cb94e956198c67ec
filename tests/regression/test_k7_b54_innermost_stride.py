"""B54: inputs whose innermost stride is not 1 gave confident garbage."""

import pytest
import torch

import headwise as hw
from tests.support.judge import judged
from tests.support.paths import Path, on_all
from tests.support.shapes import Sizes, inputs


@on_all
@pytest.mark.parametrize("which", [(0, 1, 2), (0,), (1,), (2,)], ids=str)
def test_turned_inputs(path: Path, which: tuple[int, ...]) -> None:
    for length in (16, 131):
        given = inputs(Sizes(2, 4, 1, length, length, 8, 8))
        turned = [t.mT.contiguous().mT if n in which else t for n, t in enumerate(given)]
        assert all(turned[number].stride(-1) != 1 for number in which)
        visible = torch.ones(length, length).tril().bool()
        query, key, value = turned
        judged(path, query, key, value, hw.Causal(), visible=visible)


@on_all
def test_every_second_number_of_a_row(path: Path) -> None:
    query, key, value = torch.randn(3, 2, 4, 31, 16)[..., ::2].unbind(0)
    judged(path, query, key, value)


@on_all
def test_rows_that_overlap(path: Path) -> None:
    """A sliding view: row i starts one number after row i - 1."""
    flat = torch.randn(200)
    view = flat.as_strided((1, 2, 60, 8), (0, 100, 1, 1))
    judged(path, view, view, view)

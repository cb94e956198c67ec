"""In a child of a fork torch's threads are gone; positions do not wait for them."""

import multiprocessing

import pytest
import torch
from torch import Tensor, nn

from headwise.positions import Learned, Rotary, Sinusoidal


def place(scheme: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        scheme(x)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("scheme", "shape"),
    [
        (Rotary(58), (2, 4, 500, 58)),
        (Sinusoidal(590), (2, 500, 590)),
        (Learned(500, 590), (2, 500, 590)),
    ],
    ids=["Rotary", "Sinusoidal", "Learned"],
)
def test_a_child_ends(scheme: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).exp()  # starts torch's threads here
    child = multiprocessing.get_context("fork").Process(target=place, args=(scheme, x))
    child.start()
    child.join(30)
    ended = child.exitcode
    if ended is None:
        child.kill()
    assert ended == 0

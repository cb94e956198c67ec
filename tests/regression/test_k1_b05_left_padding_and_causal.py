"""B05: left-padded samples gave NaN that leaked into real tokens in later layers."""

import torch

import headwise as hw
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_layers
from tests.support.shapes import Inputs, Sizes, inputs

REAL = torch.tensor([[False, False, True, True], [True] * 4])


@on_all
def test_rows_that_see_nothing_are_zero_and_the_others_right(path: Path) -> None:
    visible = torch.ones(4, 4).tril().bool() & REAL[:, None, None]
    given = inputs(Sizes(2, 2, 1, 4, 4, 8, 8))
    output = judged(path, *given, hw.Causal() & hw.KeyMask(REAL), visible=visible)
    assert (output[0, :, :2] == 0).all()
    unpadded = Inputs(*(t[:1, :, 2:] for t in given))
    with path.taken() as backend:
        short = hw.attend(*unpadded, hw.Causal(), backend=backend)
    torch.testing.assert_close(output[:1, :, 2:], short)


@on_layers
def test_two_layers_in_every_mode(path: Path) -> None:
    layers = [hw.MultiHeadAttention(8, 2, pattern=hw.Causal()) for _ in range(2)]
    x = torch.randn(2, 4, 8)

    def run(x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x, kv_mask=real)
        return x

    for training in (True, False):
        for grad in (True, False):
            for layer in layers:
                layer.train(training)
            with path.taken(), torch.set_grad_enabled(grad):
                padded, short = run(x, REAL), run(x[:1, 2:], REAL[:1, 2:])
            assert padded.isfinite().all()
            torch.testing.assert_close(padded[:1, 2:], short)

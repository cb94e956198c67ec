"""B42: samples of a batch with different numbers of global tokens, none included, went wrong."""

import pytest
import torch

import headwise as hw
from tests.support.longformer import neighbours, spelled

LENGTH, WINDOW = 8, 4
CHOSEN = torch.zeros(3, LENGTH, dtype=torch.bool)
CHOSEN[0, 0] = CHOSEN[1, 0] = CHOSEN[1, 3] = True
BATCHES = {"one and two": [0, 1], "one and none": [0, 2], "none and two": [2, 1], "all": [0, 1, 2]}


@pytest.mark.parametrize("samples", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_each_sample_is_what_it_is_alone(samples: list[int], padded: bool, tied: bool) -> None:
    layer = hw.nn.LongformerAttention(10, 2, WINDOW, dtype=torch.float64)
    if tied:
        for name in ("W_q", "W_k", "W_v"):
            setattr(layer, f"{name}_global", getattr(layer, name))
    chosen = CHOSEN[samples]
    real = torch.ones_like(chosen)
    real[-1, 6:] = not padded
    x = torch.randn(len(samples), LENGTH, 10, dtype=torch.float64, requires_grad=True)

    found = layer(x, chosen, kv_mask=real)
    wanted = spelled(layer, x, neighbours(LENGTH, [WINDOW]), chosen & real, real)
    torch.testing.assert_close(found, wanted)
    alone = torch.cat(
        [
            layer(x[i : i + 1], chosen[i : i + 1], kv_mask=real[i : i + 1])
            for i in range(len(samples))
        ]
    )
    torch.testing.assert_close(found, alone)
    mine, right, single = (
        torch.autograd.grad(output.square().sum(), x)[0] for output in (found, wanted, alone)
    )
    torch.testing.assert_close(mine, right)
    torch.testing.assert_close(mine, single)
    if tied:
        pattern = hw.patterns.longformer(WINDOW, chosen) & hw.Documents(real.long() - 1)
        torch.testing.assert_close(found, _through_one_pattern(layer, x, pattern))


def _through_one_pattern(
    layer: hw.nn.LongformerAttention, x: torch.Tensor, pattern: hw.patterns.Pattern
) -> torch.Tensor:
    q, k, v = (
        made(x).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for made in (layer.W_q, layer.W_k, layer.W_v)
    )
    output: torch.Tensor = layer.W_o(hw.attend(q, k, v, pattern).transpose(1, 2).flatten(2))
    return output

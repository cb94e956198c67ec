"""B01: a sample that is all padding turned parameter gradients into NaN."""

import torch

import headwise as hw
from tests.support.paths import Path, on_layers


def parameter_gradients(layer: hw.MultiHeadAttention, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(layer.parameters())))


@on_layers
def test_gradients_equal_those_of_the_real_sample_alone(path: Path) -> None:
    layer = hw.MultiHeadAttention(8, 2)
    x = torch.randn(2, 4, 8)
    real = torch.tensor([[True] * 4, [False] * 4])
    with path.taken():
        both = parameter_gradients(layer, layer(x, kv_mask=real)[0].sum())
        alone = parameter_gradients(layer, layer(x[:1], kv_mask=real[:1]).sum())
    for found, wanted in zip(both, alone, strict=True):
        assert found.isfinite().all()
        torch.testing.assert_close(found, wanted)


def test_gradient_of_one_weight_by_finite_differences() -> None:
    layer = hw.MultiHeadAttention(8, 2, dtype=torch.float64)
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    real = torch.tensor([[True, True, False, True], [False] * 4])

    def loss() -> torch.Tensor:
        output: torch.Tensor = layer(x, kv_mask=real)
        return (output[0] ** 2).sum()

    for weight in (layer.W_q.weight, layer.W_k.weight, layer.W_v.weight):
        gradient = torch.autograd.grad(loss(), weight)[0][1, 2]
        ends = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                weight[1, 2] += step
                ends.append(loss())
                weight[1, 2] -= step
        torch.testing.assert_close(gradient, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-8)


@on_layers
def test_the_padded_sample_gives_the_output_bias_alone(path: Path) -> None:
    layer = hw.MultiHeadAttention(8, 2)
    real = torch.tensor([[True] * 4, [False] * 4])
    for run in (layer.train(), layer.eval()):
        with path.taken(), torch.no_grad():
            output = run(torch.randn(2, 4, 8), kv_mask=real)
        torch.testing.assert_close(output[1], layer.W_o.bias.expand(4, 8))

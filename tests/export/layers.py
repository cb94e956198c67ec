"""Layers of every kind behind one module, for exports."""

import torch
from torch import Tensor, nn
from typing_extensions import override

import headwise as hw


def _kinds() -> dict[str, nn.Module]:
    layer = hw.MultiHeadAttention
    return {
        "window": layer(
            24, 4, num_kv_heads=2, pattern=hw.Window(3, 0), positions=hw.positions.Rotary(6)
        ),
        "causal linear": layer(
            24,
            4,
            num_kv_heads=2,
            pattern=hw.Causal(),
            mechanism=hw.nn.LinearAttention("relu", decay=0.9),
        ),
        "random features": layer(24, 4, pattern=hw.Causal(), mechanism=hw.nn.RandomFeatures(16)),
        "low rank": layer(24, 4, mechanism=hw.nn.LowRank(3, max_length=64)),
    }


class Layers(nn.Module):
    """Gives the output of every layer, or of those named."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        torch.manual_seed(7)
        layers = _kinds()
        self.layers = nn.ModuleDict({name: layers[name] for name in names or layers})

    @override
    def forward(self, x: Tensor, real: Tensor) -> dict[str, Tensor]:
        return {name: layer(x, kv_mask=real) for name, layer in self.layers.items()}


def given(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Return tokens, NaN where there are none, and which are real; on either side, or nowhere."""
    real = torch.rand(batch, length) < 0.7
    real[0] = torch.arange(length) >= length // 3
    real[-1, -1] = True
    return torch.where(real.unsqueeze(-1), torch.randn(batch, length, 24), torch.nan), real

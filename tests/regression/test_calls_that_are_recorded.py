"""A tracer must see torch operations: memory written behind its back would be replayed as noise."""

import warnings

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import headwise as hw


def test_jit_trace_replays_attention() -> None:
    layer = hw.MultiHeadAttention(16, 4).eval().requires_grad_(False)
    x, y = torch.randn(2, 1, 5, 16).unbind(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit says that it is old
        traced = torch.jit.trace(layer, x)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(traced(y), layer(y))


def test_make_fx_replays_attention() -> None:
    def causal(x: torch.Tensor) -> torch.Tensor:
        return hw.attend(x, x, x, hw.Causal())

    x, y = torch.randn(2, 1, 2, 5, 8).unbind(0)
    torch.testing.assert_close(make_fx(causal)(x)(y), causal(y))

"""Measures linear and low-rank layers against the packages known for them, and their memory."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import headwise as hw
from benchmarks.figures import Figure, figure, main
from headwise.cli.bench.measure import alternate
from headwise.cli.failures import Unable

_WIDTH, _HEADS = 512, 8
_ALLOWED = 1e-4  # of the largest number
# glibc gives every freed block of 64 kB or more back at once, not only those above 32 MB.
_RETURNING = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
_LENGTHS = (4096, 8192, 16_384, 32_768, 65_536)


def performer(seconds: float) -> Iterator[Figure]:
    """Compare a FAVOR+ layer with performer-pytorch's, same weights and directions."""
    from performer_pytorch import SelfAttention  # type: ignore[import-untyped]

    for length in (4096, 3001):
        for causal in (True, False):
            theirs = SelfAttention(_WIDTH, causal=causal, heads=_HEADS, dim_head=64)
            ours = _as_ours(theirs, causal)
            x = torch.randn(1, length, _WIDTH)
            name = f"FAVOR+, {length:,} tokens, {'causal' if causal else 'full'}"
            yield from _both_ways(name, theirs, ours, x, seconds)


def linformer(seconds: float) -> Iterator[Figure]:
    """Compare a Linformer layer with the linformer package's, same sizes."""
    from linformer import LinformerSelfAttention  # type: ignore[import-untyped]

    for length, rank in ((4096, 256), (3001, 131)):
        theirs = LinformerSelfAttention(_WIDTH, length, k=rank, heads=_HEADS)
        ours = hw.MultiHeadAttention(
            _WIDTH, _HEADS, mechanism=hw.nn.LowRank(rank, length, share="heads")
        )
        x = torch.randn(1, length, _WIDTH)
        yield from _both_ways(
            f"Linformer, {length:,} tokens, rank {rank}", theirs, ours, x, seconds
        )


def memory(_: float) -> Iterator[Figure]:
    """Fit a line to the memory of causal forward and backward passes against their length."""
    for feature_map in ("elu", "random"):
        seen = []
        for length in _LENGTHS:
            command = [sys.executable, "-m", "benchmarks.linear_memory", feature_map, str(length)]
            run = subprocess.run(command, check=True, capture_output=True, env=_RETURNING)
            seen.append(float(run.stdout))
            yield figure(
                f"memory, {feature_map}", f"{length:,} tokens, 8 heads of 64", [seen[-1]], "MB"
            )
        lengths = torch.tensor(_LENGTHS, dtype=torch.float64)
        share = torch.corrcoef(torch.stack([lengths, torch.tensor(seen).double()]))[0, 1] ** 2
        yield figure(f"memory, {feature_map}", "R² of a line", [share.item()], "")


def _as_ours(theirs: Any, causal: bool) -> hw.MultiHeadAttention:  # noqa: ANN401
    directions = theirs.fast_attention.projection_matrix
    features = hw.nn.RandomFeatures(*directions.shape)
    assert features.projection is not None
    features.projection.copy_(directions)
    ours = hw.MultiHeadAttention(
        _WIDTH, _HEADS, bias=False, pattern=hw.Causal() if causal else None, mechanism=features
    )
    projections = {"W_q": theirs.to_q, "W_k": theirs.to_k, "W_v": theirs.to_v}
    for name, projection in projections.items():
        ours.get_submodule(name).load_state_dict(projection.state_dict())
    ours.W_o = theirs.to_out
    return ours


def _both_ways(
    name: str, theirs: nn.Module, ours: nn.Module, x: Tensor, seconds: float
) -> Iterator[Figure]:
    _check(name, ours, x)

    def train(layer: nn.Module) -> Tensor:
        with torch.enable_grad():
            given = x.detach().requires_grad_()
            torch.autograd.backward(layer(given).square().sum())
        assert given.grad is not None
        return given.grad

    ways: dict[str, Callable[[nn.Module], Tensor]] = {
        "forward": lambda layer: layer(x),
        "forward and backward": train,
    }
    for way, run in ways.items():
        times = alternate({"theirs": partial(run, theirs), "ours": partial(run, ours)}, seconds)
        ratios = [a / b for a, b in zip(times["theirs"], times["ours"], strict=True)]
        yield figure(f"{name}, {way}", "times as fast as the package", ratios, "x")
        yield figure(f"{name}, {way}", "ours", [1e3 * t for t in times["ours"]], "ms")


def _check(name: str, ours: nn.Module, x: Tensor) -> None:
    """Refuse figures for a layer that is far from itself in float64, which no kernel computes."""
    exact = deepcopy(ours).double()(x.double())
    error = ((ours(x) - exact).abs().max() / exact.abs().max()).item()
    if not error < _ALLOWED:
        raise Unable(f"{name}: off by {error:.1e} of the largest number; not measured")


if __name__ == "__main__":
    with torch.no_grad():
        main(
            "benchmarks.linear",
            __doc__,
            {"performer": performer, "linformer": linformer, "memory": memory},
        )

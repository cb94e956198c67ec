"""Prints how many MB a causal linear pass with gradients adds at its peak: MAP LENGTH."""

import sys
from pathlib import Path

import torch
from torch import Tensor

import headwise as hw
from benchmarks.peak_memory import kilobytes

_MAPS = {"elu": "elu", "random": hw.nn.RandomFeatures(64, head_dim=64)}


def main() -> None:
    """Run once on a few tokens, so that nothing is set up later, then on all."""
    name, length = sys.argv[1], int(sys.argv[2])
    _train(name, *_tensors(64))
    tensors = _tensors(length)
    Path("/proc/self/clear_refs").write_text("5")
    before = kilobytes("VmRSS")
    _train(name, *tensors)
    sys.stdout.write(f"{(kilobytes('VmHWM') - before) * 1024 / 1e6}\n")


def _tensors(length: int) -> list[Tensor]:
    return [torch.randn(1, 8, length, 64).requires_grad_(number < 3) for number in range(4)]


def _train(name: str, query: Tensor, key: Tensor, value: Tensor, d_output: Tensor) -> None:
    found = hw.linear_attend(query, key, value, feature_map=_MAPS[name], causal=True)
    torch.autograd.grad(found.output, (query, key, value), d_output)


if __name__ == "__main__":
    main()

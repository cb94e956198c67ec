"""Prints how many MB a forward and backward pass adds to the process at its peak: NAME LENGTH."""

import sys
from pathlib import Path

import torch
from torch import Tensor

import headwise as hw
from benchmarks.sparse import patterns


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
    return [torch.randn(1, 12, length, 64).requires_grad_(number < 3) for number in range(4)]


def _train(name: str, query: Tensor, key: Tensor, value: Tensor, d_output: Tensor) -> None:
    output = hw.attend(query, key, value, patterns(query.shape[2])[name])
    torch.autograd.grad(output, (query, key, value), d_output)


def kilobytes(what: str) -> float:
    """Read one of the figures that the system keeps about this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return float(line.split()[1])
    raise LookupError(what)


if __name__ == "__main__":
    main()

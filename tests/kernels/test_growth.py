"""Memory of sparse attention, forwards and backwards, grows with the length and not its square."""

import os
import subprocess
import sys

import pytest
import torch

PROGRAM = """
import sys
from pathlib import Path
import torch
import headwise as hw

torch.set_num_threads(2)


def status(name):
    'Read a size of this process in KiB.'
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def used(length):
    'Return the peak of one forward and backward over what was held before, in KiB.'
    Path('/proc/self/clear_refs').write_text('5')
    before = status('VmRSS')
    given = [torch.randn(1, 4, length, 32, requires_grad=True) for _ in range(3)]
    pattern = {
        'window': hw.Window(100, 0),
        'mixed': hw.Causal() & (hw.Window(100, 0) | hw.Prefix(130)),
        'documents': hw.Documents(torch.arange(length) // 300) & hw.Causal(),
        'longformer': hw.patterns.longformer(200, [0, 500]),
        'bigbird': hw.patterns.bigbird(64),
        'heads': hw.PerHead([hw.Window(100 << head, 0) for head in range(4)]),
    }[sys.argv[1]]
    hw.attend(*given, pattern, backend='native').sum().backward()
    return status('VmHWM') - before


used(1024)
for length in map(int, sys.argv[2:]):
    print(used(length))
"""


def peaks(kind: str, *lengths: int) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, *map(str, lengths)],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return [float(line) for line in done.stdout.split()]


def assert_on_a_line(kind: str, *lengths: int, explained: float) -> None:
    found = peaks(kind, *lengths)
    x = torch.tensor(lengths, dtype=torch.float64)
    y = torch.tensor(found, dtype=torch.float64)
    share = torch.corrcoef(torch.stack([x, y]))[0, 1].item() ** 2
    assert share >= explained, f"{found} KiB for {lengths}: R² {share}"
    apart = (y[1:] - y[:-1]) / (x[1:] - x[:-1])
    assert apart.max() < 1.5 * apart.min(), f"{found} KiB for {lengths}"


def test_three_lengths() -> None:
    assert_on_a_line("window", 4096, 8192, 16384, explained=0.99)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["window", "mixed", "documents", "longformer", "bigbird", "heads"])
def test_from_4k_to_64k(kind: str) -> None:
    assert_on_a_line(kind, *(1024 * n for n in (4, 8, 16, 24, 32, 48, 64)), explained=0.999)

"""What this machine can do at most: the figures that a kernel's rate is a share of."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from headwise import _native
from headwise.cli.bench.cases import Case

_KERNEL_TYPES = ("float32", "bfloat16", "float16")
_ROUNDS = 1_000_000  # milliseconds
_SECONDS = 0.05
_TRIES = 5
_READ_BYTES = 256_000_000


@dataclass(frozen=True)
class Limits:
    """The best that was seen of this machine, with the threads and instruction set in use.

    Attributes:
        arithmetic: Multiply-adds in registers, GFLOP/s by element type. For bfloat16 they are
            dot products where the set has them.
        memory: Reading what is not in a cache, GB/s.
    """

    arithmetic: dict[str, float]
    memory: float

    def share(self, case: Case, rate: float) -> float | None:
        """Return ``rate`` over its limit; ``None`` where no kernel of ours computes the type."""
        limit = self.memory if case.reads else self.arithmetic.get(case.dtype)
        return None if limit is None else rate / limit


def limits(dtypes: Iterable[str]) -> Limits | None:
    """Measure for some element types; ``None`` without the compiled core, which has the loops."""
    if _native.kernels is None:
        return None
    asked = set(dtypes)
    wanted = [dtype for dtype in _KERNEL_TYPES if dtype in asked]
    return Limits({dtype: _arithmetic(dtype) for dtype in wanted}, _memory())


def _arithmetic(dtype: str) -> float:
    threads = torch.get_num_threads()

    def work(rounds: int) -> float:
        operations: float = _native.kernels.multiply_add(dtype, rounds, threads)
        return operations

    trial = _best(lambda: work(_ROUNDS))
    rounds = max(_ROUNDS, round(_ROUNDS * _SECONDS / trial))
    return work(1) * rounds / _best(lambda: work(rounds)) / 1e9


def _memory() -> float:
    numbers = torch.ones(_READ_BYTES // 4)
    return _READ_BYTES / _best(numbers.sum) / 1e9


def _best(call: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some calls."""
    seconds = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return min(seconds)

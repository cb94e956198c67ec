"""What this machine can do at most, measured with the loops of the compiled core."""

import time
from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

import torch

from headwise import _native
from headwise._forks import alone_after_fork

DTYPES = ("float32", "bfloat16", "float16")
_ROUNDS = 500_000  # a few milliseconds
_TRIES = 5
# Short ones, so that on a busy machine some are left alone.
_QUICK_TRIES = 20
_READ_BYTES = 256_000_000
_measuring = Lock()


class Rates(NamedTuple):
    """Multiply-adds in registers, FLOP/s, and reading what is not in a cache, bytes/s."""

    arithmetic: float
    memory: float


def rates(dtype: str) -> Rates | None:
    """Return what the machine can do with the threads and the instruction set in use.

    Measured when first asked, which takes about a third of a second, and kept for the process;
    ``None`` without the compiled core or for an element type that it does not compute.
    """
    if _native.kernels is None or dtype not in DTYPES:
        return None
    with _measuring:
        return _kept(dtype, _native.isa(), torch.get_num_threads())


def arithmetic(dtype: str, seconds: float = 0.0, tries: int = _TRIES) -> float:
    """Measure multiply-adds, FLOP/s, for about so many seconds each time; the best time counts."""
    threads = torch.get_num_threads()

    def work(rounds: int) -> float:
        operations: float = _native.kernels.multiply_add(dtype, rounds, threads)
        return operations

    trial = _best(lambda: work(_ROUNDS), _TRIES)
    rounds = max(_ROUNDS, round(_ROUNDS * seconds / trial))
    return work(1) * rounds / _best(lambda: work(rounds), tries)


@alone_after_fork
def memory() -> float:
    """Measure reading, bytes/s; the best of five times counts."""
    numbers = torch.ones(_READ_BYTES // 4, dtype=torch.float32, device="cpu")
    return _READ_BYTES / _best(numbers.sum, _TRIES)


@lru_cache(maxsize=64)
def _kept(dtype: str, isa: str | None, threads: int) -> Rates:
    return Rates(arithmetic(dtype, tries=_QUICK_TRIES), _kept_memory(threads))


@lru_cache(maxsize=64)
def _kept_memory(threads: int) -> float:
    return memory()


def _best(call: Callable[[], object], tries: int) -> float:
    """Return the seconds of the fastest of some calls."""
    seconds = []
    for _ in range(tries):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return min(seconds)

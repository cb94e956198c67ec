"""Every way a call can take on this machine: backend, instruction set, number of threads."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import pytest
import torch

from headwise import _native

ISAS: list[str] = _native.available()
THREADS = (1, 2)


class Path(NamedTuple):
    """One way to run a call."""

    backend: str
    isa: str | None = None
    threads: int = 1

    def __str__(self) -> str:
        return "-".join(str(part) for part in self if part is not None)

    @contextmanager
    def taken(self) -> Iterator[str]:
        """Force the instruction set and threads; yield the name for ``backend=``."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with _native.use_isa(self.isa) if self.isa else nullcontext():
                yield self.backend
        finally:
            torch.set_num_threads(before)


NATIVE = [Path("native", isa, threads) for isa in ISAS for threads in THREADS]
EXACT = [Path("reference"), *NATIVE]
ALL = [*EXACT, Path("sdpa")]

# With two threads each: laws say elsewhere that their number changes nothing.
ONCE = NATIVE[1::2]
LAYERS = [Path("auto", isa) for isa in ISAS] or [Path("auto")]

on_native = pytest.mark.parametrize("path", NATIVE, ids=str)
on_exact = pytest.mark.parametrize("path", EXACT, ids=str)
on_all_once = pytest.mark.parametrize("path", [Path("reference"), *ONCE, Path("sdpa")], ids=str)
on_all = pytest.mark.parametrize("path", ALL, ids=str)
on_exact_once = pytest.mark.parametrize("path", [Path("reference"), *ONCE], ids=str)
on_native_once = pytest.mark.parametrize("path", ONCE, ids=str)
on_layers = pytest.mark.parametrize("path", LAYERS, ids=str)

"""What this machine can do at most: the figures that a kernel's rate is a share of."""

from collections.abc import Iterable
from dataclasses import dataclass

from headwise import _limits, _native
from headwise.cli.bench.cases import Case

_SECONDS = 0.05


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
    wanted = [dtype for dtype in _limits.DTYPES if dtype in asked]
    found = {dtype: _limits.arithmetic(dtype, seconds=_SECONDS) / 1e9 for dtype in wanted}
    return Limits(found, _limits.memory() / 1e9)

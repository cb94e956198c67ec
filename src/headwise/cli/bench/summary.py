"""Says what came out of some cases, together with the machine it came from."""

import os
from dataclasses import asdict
from typing import Any

from rich.table import Table

from headwise.cli.bench.limits import Limits
from headwise.cli.bench.measure import Ratio
from headwise.cli.bench.report import Report
from headwise.cli.output import table
from headwise.info import info


def machine() -> dict[str, Any]:
    """Return what the figures depend on besides the case."""
    here = info()
    return {
        "cpu": here.cpu,
        "instruction_set": here.isa,
        "threads": here.threads,
        "torch": here.torch,
        "headwise": here.headwise,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def as_json(reports: list[Report], limits: Limits | None) -> dict[str, Any]:
    """Return the machine, its limits and the reports as one object of plain values."""
    return {
        "machine": machine(),
        "limits": None if limits is None else asdict(limits),
        "cases": [asdict(found) for found in reports],
    }


def as_table(reports: list[Report], limits: Limits | None) -> Table:
    """Return the reports as rows for people, below the machine and its limits."""
    place = machine()
    rows = table(
        f"{place['cpu']}, {place['instruction_set'] or 'no compiled kernels'}, "
        f"{place['threads']} threads, load {place['load']}, torch {place['torch']}; "
        "over = times as fast as, median (quartiles)\n" + _described(limits)
    )
    for name in ("case", "batch x heads x tokens x width", "type", "work", "backend"):
        rows.add_column(name)
    columns = ("ms", "sdpa ms", "formula ms", "over sdpa", "over formula", "rate", "of limit")
    for name in columns:
        rows.add_column(name, justify="right")
    for found in reports:
        isa = f" ({found.isa})" if found.isa else ""
        times = (found.milliseconds.get(name) for name in ("headwise", "sdpa", "formula"))
        rows.add_row(
            found.name,
            found.sizes,
            found.dtype,
            found.work,
            found.backend + isa,
            *("-" if time is None else f"{time:.3g}" for time in times),
            _spread(found.over_sdpa),
            _spread(found.over_formula),
            f"{found.rate:.3g} {found.unit}",
            "-" if found.share is None else f"{found.share:.0%}",
        )
    return rows


def _described(limits: Limits | None) -> str:
    if limits is None:
        return "limits of this machine: not measured, for the loops that do it are compiled"
    kinds = [f"{rate:.0f} GFLOP/s {dtype}" for dtype, rate in limits.arithmetic.items()]
    return f"limits of this machine: {', '.join([*kinds, f'{limits.memory:.0f} GB/s read'])}"


def _spread(found: Ratio | None) -> str:
    return "-" if found is None else f"{found.median:.2f} ({found.low:.2f}-{found.high:.2f})"

"""Single figures: how they are asked for, gathered and shown."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from rich.table import Table

from headwise.cli.bench import machine
from headwise.cli.output import show, steps, table


@dataclass(frozen=True)
class Figure:
    """One figure: what was measured, its value with the quartiles, the unit, the setting."""

    name: str
    what: str
    median: float
    low: float
    high: float
    unit: str


def main(name: str, what: str, parts: dict[str, Callable[[float], Iterator[Figure]]]) -> None:
    """Read the options, measure, print.

    Args:
        name: The module that is run.
        what: What it measures.
        parts: What can be measured, by name: each is given the seconds for a figure.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=what)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)}; all by default")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=6.0, help="for each figure")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if unknown := [part for part in asked.parts if part not in parts]:
        parser.error(f"unknown: {', '.join(unknown)}; the parts are {', '.join(parts)}")
    torch.set_num_threads(asked.threads)
    found: list[Figure] = []
    try:
        with steps() as progress:
            task = progress.add_task("Measuring", total=None)
            for part in asked.parts or parts:
                for seen in parts[part](asked.seconds):
                    found.append(seen)
                    progress.update(task, description=f"Measured {seen.name}")
    except KeyboardInterrupt:
        parser.exit(130, "stopped\n")
    if asked.json:
        json.dump(
            {"machine": machine(), "figures": [asdict(f) for f in found]}, sys.stdout, indent=1
        )
        sys.stdout.write("\n")
    else:
        show(_as_table(found))


def figure(name: str, what: str, seen: list[float], unit: str) -> Figure:
    """Return a figure from what was seen, one time or several."""
    if len(seen) == 1:
        return Figure(name, what, seen[0], seen[0], seen[0], unit)
    low, median, high = statistics.quantiles(seen, n=4, method="inclusive")
    return Figure(name, what, median, low, high, unit)


def seconds_of(call: Callable[[], object]) -> float:
    """Time one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _as_table(found: list[Figure]) -> Table:
    place = machine()
    rows = table(f"{place['cpu']}, {place['instruction_set']}, {place['threads']} threads")
    for name in ("figure", "what", "median (quartiles)"):
        rows.add_column(name)
    for figure in found:
        spread = "" if figure.low == figure.high else f" ({figure.low:.3g}-{figure.high:.3g})"
        rows.add_row(figure.name, figure.what, f"{figure.median:.4g} {figure.unit}{spread}")
    return rows

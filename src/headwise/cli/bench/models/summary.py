"""Says what came out of a model, together with the machine it came from."""

from dataclasses import asdict
from typing import Any

from rich.table import Table

from headwise.cli.bench.measure import Ratio, quartiles, ratio
from headwise.cli.bench.models.measuring import BEFORE, Measured
from headwise.cli.bench.summary import machine
from headwise.cli.output import table


def as_json(found: Measured) -> dict[str, Any]:
    """Return all of it as plain values."""
    return {
        "machine": machine(),
        "model": found.subject.name,
        "class": type(found.subject.model).__name__,
        "weights": "random" if found.subject.random else "loaded",
        "parameters": found.subject.parameters,
        "dtype": _dtype(found),
        "work": found.work.described,
        "attention_before": found.attention,
        "report": found.report.splitlines(),
        "rows": [_row(found, name) for name in found.times],
        "not_measured": found.absent,
        "writes_differ_at": found.parts_at,
        "complete": found.complete,
    }


def conditions(found: Measured) -> str:
    """Return what the figures depend on: the machine, and the model and its work."""
    place = machine()
    weights = "random weights" if found.subject.random else "its own weights"
    return (
        f"{place['cpu']}, {place['instruction_set'] or 'no compiled kernels'}, "
        f"{place['threads']} threads, load {place['load']}, torch {place['torch']}\n"
        f"{found.subject.name}: {type(found.subject.model).__name__}, "
        f"{found.subject.parameters:,} parameters, {weights}, {_dtype(found)}; "
        f"{found.work.described}; median (quartiles), error against float64"
    )


def as_table(found: Measured) -> Table:
    """Return the forms as rows for people."""
    rows = table("")
    rows.add_column("form", no_wrap=True)
    for name in ("ms", "times as fast", f"{found.work.unit}/s", "error"):
        rows.add_column(name, justify="right")
    for name in found.times:
        row = _row(found, name)
        rows.add_row(
            f"{name} ({found.attention})" if name == BEFORE else name,
            _spread(Ratio(**row["milliseconds"])),
            "-" if name == BEFORE else _spread(Ratio(**row["over_before"])),
            _short(row["rate"]),
            f"{row['error']:.1e}",
        )
    return rows


def notes(found: Measured) -> list[str]:
    """Return what has to be known besides the figures, line by line."""
    lines = [f"{name} was not measured: {reason}" for name, reason in found.absent.items()]
    if found.parts_at is not None:
        lines.append(
            f"what is written differs from place {found.parts_at} on: scores that are equal to "
            "rounding there, for the check above read the same text"
        )
    if not found.complete:
        lines.append(f"stopped after {len(found.times[BEFORE])} rounds")
    return [*lines, found.report]


def _row(found: Measured, name: str) -> dict[str, Any]:
    times = found.times[name]
    low, median, high = quartiles([1e3 * taken for taken in times])
    over = ratio(found.times[BEFORE], times)
    return {
        "form": name,
        "milliseconds": asdict(Ratio(median, low, high)),
        "over_before": None if name == BEFORE else asdict(over),
        "rate": found.work.amount / median * 1e3,
        "unit": f"{found.work.unit}/s",
        "error": found.errors[name],
        "rounds": len(times),
    }


def _spread(found: Ratio) -> str:
    return f"{_short(found.median)} ({_short(found.low)}-{_short(found.high)})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _dtype(found: Measured) -> str:
    return str(found.subject.model.dtype).removeprefix("torch.")

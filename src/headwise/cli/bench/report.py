"""Checks and times a case, and says what came out together with the machine it came from."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

import headwise as hw
from headwise.cli.bench.cases import Case
from headwise.cli.bench.contenders import contenders, inputs, taking_turns
from headwise.cli.bench.gate import check
from headwise.cli.bench.measure import Ratio, alternate, ratio
from headwise.cli.output import table
from headwise.info import info


@dataclass(frozen=True)
class Report:
    """The figures of one case.

    Attributes:
        name: Name of the case.
        sizes: Heads x tokens x head width.
        pattern: Who may attend to whom.
        dtype: Element type.
        backend: What headwise ran.
        isa: Instruction set it used; ``None`` outside the native kernels.
        milliseconds: Median time of a call, by contender.
        errors: Largest difference from the float64 answer, by contender.
        over_sdpa: How many times as fast as torch's own attention.
        over_formula: How many times as fast as the formula written out.
        rate: GFLOP/s over the allowed pairs, or GB/s of keys and values in decoding.
        unit: Of ``rate``.
        first_milliseconds: Time of headwise's first call, which lowers the pattern.
        rounds: How often headwise and sdpa took turns.
    """

    name: str
    sizes: str
    pattern: str
    dtype: str
    backend: str
    isa: str | None
    milliseconds: dict[str, float]
    errors: dict[str, float]
    over_sdpa: Ratio
    over_formula: Ratio
    rate: float
    unit: str
    first_milliseconds: float
    rounds: int


# Where reading is all the work, inputs as of so many layers take turns: the next layer of a model
# does not find its keys and values in the processor's cache either.
_LAYERS = 4


def report(case: Case, seconds: float = 2.0) -> Report:
    """Check a case's answers, then time its contenders for about ``seconds``.

    Raises:
        Unable: A contender's answer is wrong.
    """
    given = inputs(case)
    calls = contenders(case, given)
    if case.reads:
        others = [contenders(case, inputs(case, seed)) for seed in range(1, _LAYERS)]
        calls = {
            name: taking_turns([call, *(o[name] for o in others)]) for name, call in calls.items()
        }
    with torch.no_grad():
        plan = hw.explain(given.query, given.key, given.value, case.pattern)
        started = time.perf_counter()
        first: dict[str, Tensor] = {"headwise": calls["headwise"]()}
        first_seconds = time.perf_counter() - started
        errors = check(case.name, given, _outputs(calls, first))
        # In pairs: the formula writes so much that whatever follows it waits for memory.
        times = {
            peer: alternate({name: calls[name] for name in ("headwise", peer)}, seconds / 2)
            for peer in ("sdpa", "formula")
        }
    medians = {peer: statistics.median(found[peer]) for peer, found in times.items()}
    medians = {"headwise": statistics.median(times["sdpa"]["headwise"]), **medians}
    work = plan.flops
    if case.reads:
        work = (given.key.numel() + given.value.numel()) * given.key.element_size()
    return Report(
        name=case.name,
        sizes=case.sizes,
        pattern=repr(case.pattern) if case.pattern is not None else "Full()",
        dtype=case.dtype,
        backend=str(plan.backend),
        isa=plan.isa,
        milliseconds={name: median * 1e3 for name, median in medians.items()},
        errors=errors,
        over_sdpa=ratio(times["sdpa"]["sdpa"], times["sdpa"]["headwise"]),
        over_formula=ratio(times["formula"]["formula"], times["formula"]["headwise"]),
        rate=work / medians["headwise"] / 1e9,
        unit="GB/s" if case.reads else "GFLOP/s",
        first_milliseconds=first_seconds * 1e3,
        rounds=len(times["sdpa"]["headwise"]),
    )


def _outputs(calls: dict[str, Callable[[], Tensor]], known: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: known[name] if name in known else call() for name, call in calls.items()}


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


def as_table(reports: list[Report]) -> Table:
    """Return the reports as rows for people."""
    place = machine()
    rows = table(
        f"{place['cpu']}, {place['instruction_set'] or 'no compiled kernels'}, "
        f"{place['threads']} threads, load {place['load']}, torch {place['torch']}; "
        "over = times as fast as, median (quartiles)"
    )
    for name in ("case", "heads x tokens x width", "type", "backend"):
        rows.add_column(name)
    for name in ("ms", "sdpa ms", "formula ms", "over sdpa", "over formula", "rate"):
        rows.add_column(name, justify="right")
    for found in reports:
        isa = f" ({found.isa})" if found.isa else ""
        rows.add_row(
            found.name,
            found.sizes,
            found.dtype,
            found.backend + isa,
            *(f"{milliseconds:.3g}" for milliseconds in found.milliseconds.values()),
            _spread(found.over_sdpa),
            _spread(found.over_formula),
            f"{found.rate:.3g} {found.unit}",
        )
    return rows


def _spread(found: Ratio) -> str:
    return f"{found.median:.2f} ({found.low:.2f}-{found.high:.2f})"

"""``headwise bench``: attend against torch's attention and the formula, on this machine."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import torch
import typer

from headwise.cli.bench import summary
from headwise.cli.bench.limits import limits
from headwise.cli.bench.report import report
from headwise.cli.bench.selections import EVERYDAY, QUICK
from headwise.cli.failures import WrongInput
from headwise.cli.output import show, steps


def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="A handful of small cases, in under 20 seconds.")
    ] = False,
    chosen: Annotated[
        list[str] | None, typer.Option("--case", help="Only this case; may be repeated.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of torch and headwise.", show_default="torch's own"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure attend against torch's own attention and against the formula written out.

    Every answer, gradients too, is checked against float64 before anything is timed. The
    contenders take turns in one process, so the ratios mean something on a busy machine; the times
    mean less. Above the table stand the machine's own limits, and each row says what share of its
    limit headwise reaches.
    """
    cases = QUICK if quick else EVERYDAY
    if chosen:
        unknown = sorted(set(chosen) - {case.name for case in cases})
        if unknown:
            known = ", ".join(case.name for case in cases)
            raise WrongInput(f"there is no case {', '.join(unknown)}; the cases are {known}")
        cases = tuple(case for case in cases if case.name in chosen)
    found = []
    with _threads(threads), steps() as progress:
        task = progress.add_task("Measuring the machine", total=len(cases))
        bounds = limits(case.dtype for case in cases)
        for case in cases:
            progress.update(task, description=f"Measuring {case.name}")
            found.append(report(case, 0.8 if quick else 2.5, bounds))
            progress.advance(task)
        facts, rows = summary.as_json(found, bounds), summary.as_table(found, bounds)
    if as_json:
        print(json.dumps(facts))
    else:
        show(rows)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

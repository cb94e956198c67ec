"""``headwise bench``: attend against torch's attention and the formula, on this machine."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer

from headwise.cli.bench import models, summary
from headwise.cli.bench.limits import limits
from headwise.cli.bench.mechanisms.compare import LAYER, LONGEST, MOST, SHORTEST, Asked, compare
from headwise.cli.bench.models.options import BATCH, TOKENS, Dtype, Options
from headwise.cli.bench.models.work import NEW_TOKENS
from headwise.cli.bench.report import report
from headwise.cli.bench.selections import EVERYDAY, QUICK
from headwise.cli.failures import WrongInput
from headwise.cli.output import show, steps


def bench(  # noqa: PLR0913 (one parameter per option)
    *,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A handful of small cases, in under 20 seconds; or short lengths."
        ),
    ] = False,
    chosen: Annotated[
        list[str] | None,
        typer.Option("--case", help="Only this case, or this mechanism; may be repeated."),
    ] = None,
    mechanisms: Annotated[
        bool,
        typer.Option(
            "--mechanisms",
            help="Compare linear, random-feature, low-rank and windowed attention with exact "
            "attention: time, peak memory and error against the length, and from which length on "
            "each is faster. Some minutes.",
        ),
    ] = False,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST,
            help=f"With --mechanisms: lengths double from {SHORTEST} tokens up to this.",
            show_default=str(LONGEST),
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="With --mechanisms: these lengths.", show_default=False),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --mechanisms: the layer of MiniLM, from 0, whose states are the real ones.",
            show_default=str(LAYER),
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --mechanisms: also draw it, to a .png or .svg file; needs matplotlib.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Compare this model of transformers before and after hf.accelerate, and in ONNX "
            "Runtime and OpenVINO where they are installed: a folder, a hub id, or a config.json, "
            "which gets random weights.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, help="With --model: tokens of a sample.", show_default=str(TOKENS)
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="With --model: samples.", show_default=str(BATCH)),
    ] = None,
    dtype: Annotated[
        Dtype | None,
        typer.Option(help="With --model: element type.", show_default=Dtype.FLOAT32.value),
    ] = None,
    generate: Annotated[
        bool,
        typer.Option(
            "--generate",
            help=f"With --model: let it write {NEW_TOKENS} tokens, with hf.Cache after accelerate.",
        ),
    ] = False,
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

    With --mechanisms it compares cheap kinds of attention with exact attention instead, each
    checked against its own definition first: on random queries, keys and values, and on those of a
    layer of all-MiniLM-L6-v2 that reads a real text. The model is fetched on first use; where that
    cannot be, the command says so and goes on with random ones.

    With --model it compares a model before and after accelerate: its answers are checked against
    the same weights in float64, then all forms take turns. Ctrl-C shows what was measured by then.
    """
    asked = Asked(quick, chosen, max_length, lengths, layer, plot)
    options = Options(tokens, batch, dtype, generate, quick)
    if model is not None:
        others = ["--mechanisms"] * mechanisms + ["--case"] * bool(chosen) + asked.only_here
        if others:
            raise WrongInput(f"--model does not go with {', '.join(others)}")
        with _threads(threads):
            models.compare(model, options, for_machines=as_json)
        return
    if options.only_here:
        raise WrongInput(f"{', '.join(options.only_here)}: only with --model")
    if mechanisms:
        with _threads(threads):
            compare(asked, for_machines=as_json)
        return
    if asked.only_here:
        raise WrongInput(f"{', '.join(asked.only_here)}: only with --mechanisms")
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

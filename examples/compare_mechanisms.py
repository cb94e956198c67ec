"""Six kinds of attention learn the same text: loss against tokens, time and memory.

Small language models that differ in their attention alone read Python's own help pages, byte by
byte, in pieces of 2,048: a masked one (hidden bytes are told from both sides) and a causal one (the
next byte is told). They start from the same seed, take turns at the same batches, and are judged on
documents that nobody learned from. Low-rank attention is no causal one, so it is in the first table
only.

    python examples/compare_mechanisms.py --plot curves.png
    python examples/compare_mechanisms.py --task causal --attention full window --length 4096
    python examples/compare_mechanisms.py --text book.txt --json > curves.json

Columns: bits a held-out byte takes at the end; bits after the seconds that the fastest one needed
for all of its steps; seconds of training (the median step times the steps); those over the ones of
full attention; and how far memory rises in a training step. Ctrl-C ends the training early, and
the tables show what there is.

A run takes some minutes on two cores; --steps makes it shorter. Low-rank and linear attention are
not what they could be after hours: what shows here is which of them learns soon.
"""

# ruff: noqa: T201

import argparse
import json
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from help_pages import Text, hidden, in_bits, read
from language_model import MECHANISMS, NOT_CAUSAL, make
from learning_curves import Sample, Training
from step_bar import step_bar

from headwise.cli.output import show, table

TASKS = ("masked", "causal")
LOOKS = 10
# Pieces of held-out text that each look reads.
JUDGED = 16
# Of the figures of a row.
DIGITS = (3, 3, 1, 2, 0)

Runs = dict[str, Training]


def main() -> None:
    """Read the options, train, print."""
    parser, options, text = read_options()
    tables: dict[str, Runs] = {}
    stopped = False
    try:
        for task in dict.fromkeys(options.task):
            tables[task] = {}
            train(tables[task], task, text, options)
    except KeyboardInterrupt:
        stopped = True
    measured = {task: runs for task, runs in tables.items() if all_looked(runs)}
    if options.json:
        print(json.dumps(as_json(measured, text, options, stopped)))
    else:
        for task, runs in measured.items():
            report(task, runs, text, options)
    if options.plot is not None and measured:
        from curves_picture import save

        save(measured, options.plot)
    if stopped:
        parser.exit(130, "stopped before the end\n")


def train(runs: Runs, task: str, text: Text, options: Namespace) -> None:
    """Let the trainings of a task take turns at the same batches, and look at them now and then."""
    generator = torch.Generator().manual_seed(options.seed)
    names = [n for n in dict.fromkeys(options.attention) if task == "masked" or n not in NOT_CAUSAL]
    if not names:
        return
    with step_bar() as progress:
        shown = progress.add_task(f"{task}: making models", total=options.steps)
        warm = batch(task, text, options, torch.Generator().manual_seed(options.seed))
        for name in names:
            runs[name] = Training(make(name, task, options), options.lr, options.steps, warm)
        look(runs, task, text, options)
        progress.update(shown, description=f"{task}: training {len(runs)} models")
        for step in range(1, options.steps + 1):
            sample = batch(task, text, options, generator)
            for run in runs.values():
                run.step(sample)
            progress.advance(shown)
            if step * LOOKS // options.steps > (step - 1) * LOOKS // options.steps:
                look(runs, task, text, options)


def batch(task: str, text: Text, options: Namespace, generator: torch.Generator) -> Sample:
    """Draw what models learn from in one step."""
    ids = text.batch(options.batch, options.length, generator)
    return hidden(ids, generator) if task == "masked" else (ids, ids)


def look(runs: Runs, task: str, text: Text, options: Namespace) -> None:
    """Judge all trainings by the same held-out text, the same bytes of it hidden."""
    for run in runs.values():
        run.look(judged(task, text, options), in_bits)


def judged(task: str, text: Text, options: Namespace) -> Iterator[Sample]:
    """Yield the held-out samples, the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    for ids in text.pieces(options.batch, options.length, JUDGED):
        yield hidden(ids, generator) if task == "masked" else (ids, ids)


def all_looked(runs: Runs) -> bool:
    """Say whether there is something to show of every training."""
    return bool(runs) and all(len(run.curve.bits) > 1 for run in runs.values())


def report(task: str, runs: Runs, text: Text, options: Namespace) -> None:
    """Print the table of a task."""
    curve = next(iter(runs.values())).curve
    last = last_look(runs)
    print(
        f"{task}: {curve.steps[last]} steps, {curve.tokens[last]:,} bytes read in pieces of "
        f"{options.length:,}\n{counting(task, text)}"
    )
    shown = table("")
    for column in ("attention", "bits", "bits at equal time", "seconds", "of full", "peak MB"):
        shown.add_column(column, justify="left" if column == "attention" else "right")
    for name, figures in rows(runs).items():
        shown.add_row(name, *map(cell, figures.values(), DIGITS))
    show(shown)


def counting(task: str, text: Text) -> str:
    """Say what is reached without any model."""
    if task == "masked":
        return f"who only counts how often a byte comes takes {text.bits(0):.3f} bits"
    return f"who only counts how often a byte follows another takes {text.bits(1):.3f} bits"


def last_look(runs: Runs) -> int:
    """Return the place of the last look that all trainings had."""
    return min(len(run.curve.bits) for run in runs.values()) - 1


def rows(runs: Runs) -> dict[str, dict[str, float | None]]:
    """Return the figures of the trainings as far as they all came."""
    last = last_look(runs)
    equal = min(run.curve.seconds[last] for run in runs.values())
    full = runs["full"].curve.seconds[last] if "full" in runs else None
    return {
        name: {
            "bits": run.curve.bits[last],
            "bits_at_equal_time": run.curve.at(equal),
            "seconds": run.curve.seconds[last],
            "of_full": None if full is None else run.curve.seconds[last] / full,
            "megabytes": run.megabytes,
        }
        for name, run in runs.items()
    }


def as_json(
    measured: dict[str, Runs], text: Text, options: Namespace, stopped: bool
) -> dict[str, object]:
    """Return all that was measured."""
    setting = {name: str(v) if isinstance(v, Path) else v for name, v in vars(options).items()}
    return {
        "setting": {**setting, "threads": torch.get_num_threads(), "torch": torch.__version__},
        "stopped": stopped,
        "counting": {"masked": text.bits(0), "causal": text.bits(1)},
        "tasks": {
            task: {
                name: {**figures, "parameters": runs[name].model.num_parameters()}
                | {"curve": {**vars(runs[name].curve), "seconds": runs[name].curve.seconds}}
                for name, figures in rows(runs).items()
            }
            for task, runs in measured.items()
        },
    }


def cell(number: float | None, digits: int) -> str:
    """Return a number for a table; a dash where there is none."""
    return "-" if number is None else f"{number:,.{digits}f}"


def read_options() -> tuple[argparse.ArgumentParser, Namespace, Text]:
    """Return the parser, for its errors, the options, and the text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, nargs="+", default=TASKS, help="(default both)")
    parser.add_argument(
        "--attention", choices=MECHANISMS, nargs="+", default=list(MECHANISMS), help="(default all)"
    )
    for name, default, meaning in (
        ("length", 2048, "bytes in a sample"),
        ("batch", 4, "samples in a step"),
        ("steps", 300, "training steps"),
        ("width", 64, "width of the models"),
        ("heads", 4, "attention heads"),
        ("layers", 2, "blocks of a model"),
        ("window", 128, "neighbours that a window sees, on both sides together"),
        ("block", 32, "bytes in a block of BigBird; 7 blocks are seen, 3 of them near"),
        ("features", 64, "random features"),
        ("rank", 128, "projected tokens of low-rank attention"),
        ("seed", 0, "of weights and batches"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{meaning} (default {default})"
        )
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate (default 0.01)")
    parser.add_argument("--text", type=Path, help="a text file in place of the help pages")
    parser.add_argument("--plot", type=Path, help="where to save a picture, .png or .svg")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    check(parser, options)
    try:
        text = read(options.text)
    except (OSError, UnicodeDecodeError) as failure:
        parser.error(f"--text {options.text}: {getattr(failure, 'strerror', failure)}")
    if options.length > min(len(text.training), len(text.held_out)):
        parser.error(
            f"--length {options.length} is too long: the text has {len(text.training):,} bytes to "
            f"learn from and {len(text.held_out):,} held out"
        )
    return parser, options, text


def check(parser: argparse.ArgumentParser, options: Namespace) -> None:
    """Refuse options that make no sense, before anything runs."""
    for name, least in (("steps", 1), ("length", 2), ("batch", 1), ("layers", 1), ("heads", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")
    for name in ("width", "window", "block", "features", "rank"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.width % (2 * options.heads):
        parser.error(
            f"--width must be a multiple of twice --heads, got {options.width} and {options.heads}"
        )
    if list(options.task) == ["causal"] and set(options.attention) <= {*NOT_CAUSAL}:
        parser.error(f"--attention: {', '.join(NOT_CAUSAL)} is not causal, and --task is causal")
    if options.plot is not None:
        if options.plot.suffix.lower() not in (".png", ".svg"):
            parser.error(f"--plot writes .png or .svg, got {options.plot}")
        if not options.plot.parent.is_dir():
            parser.error(f"--plot: there is no folder {options.plot.parent}")
        if find_spec("matplotlib") is None:
            parser.error("--plot needs matplotlib: pip install 'headwise[plot]'")


if __name__ == "__main__":
    main()

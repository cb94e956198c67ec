"""Learning curves as a picture: bits against bytes read and against seconds, and memory."""

from pathlib import Path

from learning_curves import Training
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

# The trainings of a task, by attention.
Runs = dict[str, Training]

# Apart in grey too, by markers; the colours are those of Okabe and Ito, for eyes that mix up hues.
_STYLES = (
    ("black", "o"),
    ("#0072B2", "s"),
    ("#009E73", "^"),
    ("#E69F00", "v"),
    ("#D55E00", "D"),
    ("#CC79A7", "P"),
)


def save(tasks: dict[str, Runs], path: Path) -> None:
    """Draw a row for each task and write the picture to a file."""
    draw(tasks).savefig(path, dpi=110)


def draw(tasks: dict[str, Runs]) -> Figure:
    """Return the picture; a task without known memory has an empty third panel."""
    figure = Figure(figsize=(12.0, 3.6 * len(tasks) + 0.5), layout="constrained")
    grid = figure.subplots(len(tasks), 3, squeeze=False)
    names = list(dict.fromkeys(name for runs in tasks.values() for name in runs))
    styles = dict(zip(names, _STYLES, strict=False))
    for row, (task, runs) in zip(grid, tasks.items(), strict=True):
        for axes, label, along in (
            (row[0], "bytes read", "tokens"),
            (row[1], "seconds", "seconds"),
        ):
            for name, run in runs.items():
                colour, marker = styles[name]
                # The first look is before the first step, and would flatten the rest.
                places, bits = getattr(run.curve, along)[1:], run.curve.bits[1:]
                axes.plot(places, bits, marker, ls="-", color=colour)
                axes.lines[-1].set(markersize=4, label=name)
            axes.set(xlabel=label, ylabel="bits a held-out byte", title=f"{task}: {label}")
            axes.set_xlim(left=0)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.grid(color="0.9")
        _memory(row[2], task, runs, styles)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _memory(axes: Axes, task: str, runs: Runs, styles: dict[str, tuple[str, str]]) -> None:
    found = {name: run.megabytes for name, run in runs.items()}
    known = {name: megabytes for name, megabytes in found.items() if megabytes is not None}
    axes.barh(list(known), list(known.values()), color=[styles[name][0] for name in known])
    axes.invert_yaxis()
    axes.set(xlabel="MB", title=f"{task}: peak memory of a step")

"""The comparison as a picture: time, memory and error against the length."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headwise.cli.bench.mechanisms.contenders import EXACT
from headwise.cli.bench.mechanisms.crossover import Crossing
from headwise.cli.bench.mechanisms.outcome import Outcome
from headwise.cli.bench.mechanisms.summary import Found
from headwise.cli.failures import Unable, WrongInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SUFFIXES = (".png", ".svg")
# Apart in grey too, by markers; the colours are those of Okabe and Ito, for eyes that mix up hues.
_STYLES = (
    ("black", "o"),
    ("#0072B2", "s"),
    ("#009E73", "^"),
    ("#E69F00", "v"),
    ("#D55E00", "D"),
    ("#CC79A7", "P"),
    ("#56B4E9", "X"),
)

_ERROR = "relative error"


class _Panel(NamedTuple):
    """A kind of figure; ``work`` is that whose crossovers belong into it."""

    title: str
    label: str
    value: Callable[[Outcome], float | None]
    work: str | None = None


_PANELS = (
    _Panel("time, forward", "ms", lambda o: o.forward.milliseconds, "forward"),
    _Panel("time, forward + backward", "ms", lambda o: o.training.milliseconds, "fwd+bwd"),
    _Panel("peak memory, forward + backward", "MB", lambda o: o.training_megabytes),
    _Panel("error, random states", _ERROR, lambda o: o.error_random),
    _Panel("error, real states", _ERROR, lambda o: o.error_real),
)


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be written, before anything is measured.

    Raises:
        WrongInput: Another kind of file, or no such folder.
        Unable: matplotlib is not installed.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise WrongInput(f"--plot writes {' or '.join(_SUFFIXES)}, got {path}")
    if not path.parent.is_dir():
        raise WrongInput(f"--plot: there is no folder {path.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Unable("--plot needs matplotlib: pip install 'headwise[plot]'") from None


def save_plot(found: Found, path: Path) -> None:
    """Write the picture to a file."""
    draw(found).savefig(path, dpi=110)


def draw(found: Found) -> "Figure":
    """Return the picture: a row for each form, a column for each kind of figure.

    Columns of which nothing is known are left out. A ring marks where a mechanism becomes faster
    than exact attention.
    """
    from matplotlib.figure import Figure

    outcomes = found.outcomes
    panels = [panel for panel in _PANELS if any(panel.value(o) is not None for o in outcomes)]
    forms = [causal for causal in (False, True) if any(o.causal == causal for o in outcomes)]
    figure = Figure(figsize=(4.2 * len(panels), 3.6 * len(forms) + 0.7), layout="constrained")
    grid = figure.subplots(len(forms), len(panels), squeeze=False)
    names = list(dict.fromkeys(outcome.mechanism for outcome in outcomes))
    styles = dict(zip(names, _STYLES, strict=False))
    for row, causal in zip(grid, forms, strict=True):
        of_form = [outcome for outcome in outcomes if outcome.causal == causal]
        marks = [mark for mark in found.crossings if mark.causal == causal]
        for axes, panel in zip(row, panels, strict=True):
            _curves(axes, panel, of_form, styles)
            _rings(axes, [m for m in marks if m.work == panel.work], panel, of_form, styles)
            axes.set_title(f"{'causal' if causal else 'full'}: {panel.title}", fontsize=10)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    heads, width = found.shape
    figure.suptitle(f"{heads} heads × {width}; rings: faster than exact attention from here on")
    return figure


def _curves(
    axes: "Axes", panel: _Panel, outcomes: Sequence[Outcome], styles: dict[str, tuple[str, str]]
) -> None:
    for name, (colour, marker) in styles.items():
        points = [
            (outcome.length, value)
            for outcome in outcomes
            if outcome.mechanism == name and (value := panel.value(outcome)) is not None
        ]
        if points:
            # Broad, so that it shows below a curve that runs along it.
            broad = 3.5 if name == EXACT else 1.5
            (curve,) = axes.plot(*zip(*points, strict=True), label=name, color=colour)
            curve.set(linewidth=broad, marker=marker, markersize=5)
    _scales(axes, panel)


def _scales(axes: "Axes", panel: _Panel) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set(xlabel="tokens", ylabel=panel.label)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if panel.label == _ERROR:
        axes.set_ylim(bottom=0.0)
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(color="0.9")
    axes.set_axisbelow(True)


def _rings(
    axes: "Axes",
    marks: Sequence[Crossing],
    panel: _Panel,
    outcomes: Sequence[Outcome],
    styles: dict[str, tuple[str, str]],
) -> None:
    """Mark the crossovers on the curve of exact attention, with their lengths."""
    from matplotlib.patheffects import withStroke
    from numpy import array, exp, interp, log

    exact = [outcome for outcome in outcomes if outcome.mechanism == EXACT]
    lengths = log([outcome.length for outcome in exact])
    values = log(array([panel.value(outcome) for outcome in exact], dtype=float))
    for mark in marks:
        if mark.tokens is None or mark.tokens == mark.shortest:
            continue
        colour = styles[mark.mechanism][0]
        height = float(exp(interp(log(mark.tokens), lengths, values)))
        (ring,) = axes.plot([mark.tokens], [height], "o", color=colour, zorder=4)
        ring.set(markersize=10, fillstyle="none", markeredgewidth=1.6)
        label = axes.annotate(
            f"{mark.tokens:,}",
            (mark.tokens, height),
            xytext=(7, -12),
            textcoords="offset points",
            color=colour,
            zorder=5,
        )
        label.set_path_effects([withStroke(linewidth=3, foreground="white")])

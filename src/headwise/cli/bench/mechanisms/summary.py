"""Says what came out of the comparison: for people a table with its crossovers, or plain values."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from headwise.cli.bench.measure import Ratio
from headwise.cli.bench.mechanisms.contenders import CONTENDERS, EXACT
from headwise.cli.bench.mechanisms.crossover import Crossing, crossings
from headwise.cli.bench.mechanisms.outcome import Outcome, Timing
from headwise.cli.bench.mechanisms.states import Shape
from headwise.cli.bench.summary import machine
from headwise.cli.output import table

_FORMS = {False: "full", True: "causal"}
_KINDS = ((False, "forward"), (False, "fwd+bwd"), (True, "forward"), (True, "fwd+bwd"))
_RATIO = len("(0.00-0.00)")

_NOTES = (
    "over exact: times as fast as exact attention, median (quartiles)",
    "MB: what a call takes in memory at its peak, its results included",
    "error: |found - exact| / |exact| by the Frobenius norm, where exact is softmax attention in "
    "float64 on the same queries, keys and values; 1 is the error of an output of zeros",
    "times and memory are those of random states, one sample; fwd+bwd has the gradients of query, "
    "key, value and whatever the mechanism learns",
)


@dataclass(frozen=True)
class Found:
    """Everything that the comparison found.

    Attributes:
        shape: Heads and their width.
        outcomes: The figures.
        real: Where real states come from; ``None`` = there were none.
        no_real: Why there were none.
    """

    shape: Shape
    outcomes: Sequence[Outcome]
    real: str | None
    no_real: str | None = None

    @property
    def crossings(self) -> list[Crossing]:
        """Where mechanisms become faster than exact attention."""
        return crossings(self.outcomes)


def as_json(found: Found) -> dict[str, Any]:
    """Return all as one object of plain values."""
    return {
        "machine": machine(),
        "shape": found.shape._asdict(),
        "real_states": found.real,
        "no_real_states_because": found.no_real,
        "outcomes": [asdict(outcome) for outcome in found.outcomes],
        "crossovers": [
            {**asdict(crossing), "in_words": crossing.in_words} for crossing in found.crossings
        ],
        "notes": notes(found),
    }


def as_tables(found: Found) -> list[Table]:
    """Return two tables for each form, and the one of crossovers below them."""
    of_forms = [make(found, causal) for causal in _FORMS for make in (_times, _memory_and_error)]
    return [*of_forms, _crossovers(found.crossings)]


def conditions(found: Found) -> str:
    """Return what the figures depend on."""
    place = machine()
    heads, width = found.shape
    return (
        f"{heads} heads x {width}, float32; {place['cpu']}, "
        f"{place['instruction_set'] or 'no compiled kernels'}, {place['threads']} threads, "
        f"load {place['load']}, torch {place['torch']}"
    )


def notes(found: Found) -> list[str]:
    """Return what has to be known about the figures, line by line."""
    names = {outcome.mechanism for outcome in found.outcomes}
    real = f"real states: {found.real}"
    if found.real is None:
        real = f"real states: none, every error is one of random states; {found.no_real}"
    return [*_NOTES, real, *(f"{c.name}: {c.note}" for c in CONTENDERS if c.name in names)]


def _times(found: Found, causal: bool) -> Table:
    rows = _rows(f"{_FORMS[causal]}, ms")
    for name in ("forward", "over exact", "fwd+bwd", "over exact"):
        # On a narrow terminal the quartiles of a ratio go below it.
        rows.add_column(name, justify="right", min_width=_RATIO if name[0] == "o" else None)
    for outcome in _of(found, causal, rows):
        times = (*_timed(outcome.forward), *_timed(outcome.training))
        rows.add_row(f"{outcome.length:,}", outcome.mechanism, *times)
    return rows


def _memory_and_error(found: Found, causal: bool) -> Table:
    rows = _rows(f"{_FORMS[causal]}, MB and error")
    for name in ("forward", "fwd+bwd", "error, random", "error, real"):
        rows.add_column(name, justify="right")
    for outcome in _of(found, causal, rows):
        rows.add_row(
            f"{outcome.length:,}",
            outcome.mechanism,
            _short(outcome.forward_megabytes, 3),
            _short(outcome.training_megabytes, 3),
            _short(outcome.error_random, 2),
            _short(outcome.error_real, 2),
        )
    return rows


def _rows(title: str) -> Table:
    """Return a table whose first columns say what a row is about, and are never cut."""
    rows = table(title)
    rows.add_column("tokens", justify="right", no_wrap=True)
    rows.add_column("mechanism", no_wrap=True)
    return rows


def _of(found: Found, causal: bool, rows: Table) -> Iterator[Outcome]:
    """Go through the outcomes of a form, with a rule between lengths."""
    for outcome in found.outcomes:
        if outcome.causal == causal:
            if outcome.mechanism == EXACT:
                rows.add_section()
            yield outcome


def _crossovers(found: Sequence[Crossing]) -> Table:
    rows = table("faster than exact attention, by the length in tokens")
    rows.add_column("mechanism", no_wrap=True)
    for causal, work in _KINDS:
        rows.add_column(f"{_FORMS[causal]}, {work}")
    told = {(one.mechanism, one.causal, one.work): one.in_words for one in found}
    for name in dict.fromkeys(one.mechanism for one in found):
        rows.add_row(name, *(told.get((name, *kind), "no such form") for kind in _KINDS))
    return rows


def _timed(timing: Timing) -> tuple[str, str]:
    return f"{timing.milliseconds:.3g}", _spread(timing.over_exact)


def _spread(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def _short(number: float | None, digits: int) -> str:
    return "-" if number is None else f"{number:.{digits}g}"

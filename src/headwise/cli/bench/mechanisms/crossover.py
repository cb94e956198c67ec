"""From which length on a mechanism is faster than exact attention."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headwise.cli.bench.mechanisms.contenders import EXACT
from headwise.cli.bench.mechanisms.outcome import Outcome


@dataclass(frozen=True)
class Crossing:
    """Where a mechanism becomes faster than exact attention, and stays so.

    Attributes:
        mechanism: Its name.
        causal: Whether later tokens were hidden.
        work: ``forward`` or ``fwd+bwd``.
        tokens: About how many tokens it takes, read from the line between the two lengths that
            were measured around it; ``None`` = it is not faster at the longest.
        shortest: The shortest length that was measured.
        longest: The longest.
    """

    mechanism: str
    causal: bool
    work: str
    tokens: int | None
    shortest: int
    longest: int

    @property
    def in_words(self) -> str:
        """What to tell people."""
        if self.tokens is None:
            return f"never up to {self.longest:,}"
        if self.tokens == self.shortest:
            return f"from {self.shortest:,} or fewer"
        return f"from about {self.tokens:,}"


def crossing(lengths: Sequence[int], ratios: Sequence[float]) -> int | None:
    """Return from about which length on ratios stay above 1.

    Args:
        lengths: What was measured, ascending.
        ratios: How many times as fast as exact attention, for each.

    Returns:
        The first length where all ratios are above 1. ``None`` where the last one is not.
        Otherwise about the place where the line between two measured points, both axes
        logarithmic, crosses 1.
    """
    slower = [number for number, ratio in enumerate(ratios) if not ratio > 1]
    if not slower:
        return lengths[0]
    last = slower[-1]
    if last == len(lengths) - 1:
        return None
    below, above = math.log(ratios[last]), math.log(ratios[last + 1])
    before, after = math.log(lengths[last]), math.log(lengths[last + 1])
    found = math.exp(before + (after - before) * below / (below - above))
    return _rounded(found, lengths[last], lengths[last + 1])


def crossings(found: Iterable[Outcome]) -> list[Crossing]:
    """Return where each mechanism crosses exact attention, for each kind of work."""
    series: dict[tuple[str, bool], list[Outcome]] = {}
    for outcome in found:
        if outcome.mechanism != EXACT:
            series.setdefault((outcome.mechanism, outcome.causal), []).append(outcome)
    crossed = []
    for (name, causal), seen in series.items():
        lengths = [outcome.length for outcome in seen]
        for work in ("forward", "fwd+bwd"):
            tokens = crossing(lengths, [_median(outcome, work) for outcome in seen])
            crossed.append(Crossing(name, causal, work, tokens, lengths[0], lengths[-1]))
    return crossed


def _median(outcome: Outcome, work: str) -> float:
    ratio = outcome.over_exact(work)
    assert ratio is not None, "exact attention is not compared with itself"
    return ratio.median


def _rounded(number: float, low: int, high: int) -> int:
    """Round to two digits, or as many as it takes to stay between what was measured."""
    unit: int = 10 ** max(math.floor(math.log10(number)) - 1, 0)
    while unit > 1 and not low < round(number / unit) * unit <= high:
        unit //= 10
    return min(max(round(number / unit) * unit, low + 1), high)

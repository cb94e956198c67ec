"""Times contenders in turn, so that what disturbs the machine disturbs all of them."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_SAMPLE_SECONDS = 0.002
_ROUNDS = (5, 200)


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one is as another: the median over rounds, with the quartiles."""

    median: float
    low: float
    high: float


def alternate(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Return the seconds of a call of each contender, round by round.

    Args:
        calls: What to time; each has run before.
        seconds: About how long to measure in all; at least five rounds are made.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for seen in rounds(calls, seconds):
        for name, taken in seen.items():
            times[name].append(taken)
    return times


def rounds(calls: dict[str, Callable[[], Any]], seconds: float) -> Iterator[dict[str, float]]:
    """Yield the seconds of a call of each contender, after each round; see ``alternate``."""
    repeats = {name: _repeats(call) for name, call in calls.items()}
    started = time.perf_counter()
    for done in range(_ROUNDS[1]):
        if done >= _ROUNDS[0] and time.perf_counter() - started >= seconds:
            break
        yield {name: _time(call, repeats[name]) for name, call in calls.items()}


def ratio(slower: list[float], faster: list[float]) -> Ratio:
    """Return how the two compare, round by round."""
    low, median, high = quartiles([a / b for a, b in zip(slower, faster, strict=True)])
    return Ratio(median, low, high)


def quartiles(seen: list[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(seen) == 1:
        return seen[0], seen[0], seen[0]
    low, median, high = statistics.quantiles(seen, n=4, method="inclusive")
    return low, median, high


def _repeats(call: Callable[[], Any]) -> int:
    """Return how often to call for one sample that the clock can resolve."""
    return max(1, round(_SAMPLE_SECONDS / _time(call, 1)))


def _time(call: Callable[[], Any], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - started) / repeats

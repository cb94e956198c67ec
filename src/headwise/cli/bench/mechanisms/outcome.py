"""Measures mechanisms at one length after the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headwise.cli.bench.measure import Ratio, alternate, quartiles, ratio
from headwise.cli.bench.mechanisms.contenders import EXACT, Contender
from headwise.cli.bench.mechanisms.exactness import error_of, precise
from headwise.cli.bench.mechanisms.made import Made
from headwise.cli.bench.mechanisms.peak import peak_megabytes
from headwise.cli.bench.mechanisms.states import States, wanting_gradients


@dataclass(frozen=True)
class Timing:
    """The time of a call: median and quartiles in ms, and the ratio of exact attention's to it.

    ``over_exact`` is ``None`` for exact attention itself.
    """

    milliseconds: float
    low: float
    high: float
    over_exact: Ratio | None


@dataclass(frozen=True)
class Outcome:
    """The figures of one mechanism at one length.

    Attributes:
        mechanism: Its name.
        length: Tokens.
        causal: Whether later tokens were hidden.
        forward: Time of a forward pass.
        training: Time of forward and backward, with the gradients of query, key, value and what
            the mechanism learns.
        forward_megabytes: What a forward pass takes in memory at its peak; ``None`` where the
            system does not tell.
        training_megabytes: Likewise of forward and backward.
        error_random: Relative error on random states, against exact attention in float64.
        error_real: Likewise on real ones; ``None`` without.
    """

    mechanism: str
    length: int
    causal: bool
    forward: Timing
    training: Timing
    forward_megabytes: float | None
    training_megabytes: float | None
    error_random: float
    error_real: float | None

    def over_exact(self, work: str) -> Ratio | None:
        """Return how many times as fast as exact attention ``forward`` or ``fwd+bwd`` is."""
        return (self.forward if work == "forward" else self.training).over_exact


def outcomes(
    contenders: Sequence[Contender],
    lengths: Sequence[int],
    random: States,
    real: States | None,
    *,
    causal: bool,
    seconds: float,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Outcome]:
    """Measure one form of all mechanisms, length by length.

    Args:
        contenders: Exact attention, and those without such a form, which are left out.
        lengths: How many tokens, ascending.
        random: Random states of the longest length or more; times and memory are taken on them.
        real: Real ones, likewise; ``None`` = there are none.
        causal: Whether later tokens are hidden.
        seconds: For the turns of one kind of work at one length, about.
        tell: Told what is about to be measured.
    """
    taking = [contender for contender in contenders if contender.takes(causal)]
    for length in lengths:
        place = f"{'causal' if causal else 'full'}, {length:,} tokens"
        made = {
            contender.name: contender.ready(random.shape, length, causal) for contender in taking
        }
        tell(f"Errors: {place}")
        states = random.first(length)
        errors = _errors(made, states, causal)
        on_real = None if real is None else _errors(made, real.first(length), causal)
        given = wanting_gradients(states)
        forward = {name: partial(one.forward, states) for name, one in made.items()}
        training = {name: partial(one.training, given) for name, one in made.items()}
        tell(f"Memory: {place}")
        peaks = {
            name: (peak_megabytes(forward[name]), peak_megabytes(training[name])) for name in made
        }
        tell(f"Times: {place}")
        of_forward, of_training = _timed(forward, seconds), _timed(training, seconds)
        for name in made:
            yield Outcome(
                name,
                length,
                causal,
                of_forward[name],
                of_training[name],
                *peaks[name],
                errors[name],
                None if on_real is None else on_real[name],
            )


def _errors(made: dict[str, Made], states: States, causal: bool) -> dict[str, float]:
    exact = precise(states, causal)
    return {name: error_of(one.forward(states), exact) for name, one in made.items()}


def _timed(given: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, Timing]:
    calls = dict(given)
    for call in calls.values():
        call()
    times = alternate(calls, seconds)
    found = {}
    for name, seen in times.items():
        low, median, high = quartiles([1e3 * second for second in seen])
        over = None if name == EXACT else ratio(times[EXACT], seen)
        found[name] = Timing(median, low, high, over)
    return found

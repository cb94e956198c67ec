"""Measures what `headwise bench --mechanisms` compares in more depth: times, memory, errors."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.figures import Figure, figure, main
from headwise.cli.bench.mechanisms import (
    CONTENDERS,
    MINILM,
    check,
    crossings,
    error_of,
    outcomes,
    peak_megabytes,
    precise,
    random_states,
    real_states,
    wanting_gradients,
)
from headwise.cli.bench.mechanisms.contenders import EXACT

_LENGTHS = (256, 512, 1031, 2048, 3001, 4096, 8192)
_LONG = tuple(4096 << step for step in range(5))
_LAYERS = 6
_REAL = 4096
_WORDS = {False: "full", True: "causal"}


def times(seconds: float) -> Iterator[Figure]:
    """Compare with exact attention, round lengths and uneven ones, and name the crossovers."""
    random = random_states(MINILM, _LENGTHS[-1])
    for causal, form in _WORDS.items():
        check(CONTENDERS, random, causal=causal)
        found = []
        for seen in outcomes(CONTENDERS, _LENGTHS, random, None, causal=causal, seconds=seconds):
            found.append(seen)
            for work in ("forward", "fwd+bwd"):
                if ratio := seen.over_exact(work):
                    yield Figure(
                        f"{seen.mechanism} {form} {work}",
                        f"times as fast as exact attention, {seen.length:,} tokens",
                        *(ratio.median, ratio.low, ratio.high, "x"),
                    )
        for crossed in crossings(found):
            yield figure(
                f"{crossed.mechanism} {form} {crossed.work}",
                f"faster than exact attention: {crossed.in_words}",
                [float("inf") if crossed.tokens is None else float(crossed.tokens)],
                "tokens",
            )


def memory(_: float) -> Iterator[Figure]:
    """Measure the peak of causal forward and backward, and how straight the line through it is."""
    for contender in CONTENDERS:
        if contender.name == EXACT or not contender.takes(causal=True):
            continue
        peaks = []
        for length in _LONG:
            made = contender.ready(MINILM, length, causal=True)
            given = wanting_gradients(random_states(MINILM, length))
            peak = peak_megabytes(partial(made.training, given))
            if peak is None:
                raise SystemExit("memory: this system does not tell what a process takes")
            peaks.append(peak)
            yield figure(
                f"{contender.name} causal",
                f"peak memory of forward and backward, {length:,} tokens",
                [peak],
                "MB",
            )
        numbers = torch.tensor([_LONG, peaks], dtype=torch.float64)
        straight = float(torch.corrcoef(numbers)[0, 1] ** 2)
        yield figure(
            f"{contender.name} causal", "R² of a straight line through these", [straight], ""
        )


def errors(_: float) -> Iterator[Figure]:
    """Measure the error on the states of every layer of MiniLM."""
    for layer in range(_LAYERS):
        states = real_states(layer, _REAL)
        for causal, form in _WORDS.items():
            exact = precise(states, causal)
            for contender in CONTENDERS:
                if contender.takes(causal):
                    made = contender.ready(states.shape, _REAL, causal)
                    yield figure(
                        f"{contender.name} {form}",
                        f"relative error, layer {layer} of MiniLM, {_REAL:,} tokens",
                        [error_of(made.forward(states), exact)],
                        "",
                    )


if __name__ == "__main__":
    main("benchmarks.mechanisms", __doc__, {"times": times, "memory": memory, "errors": errors})

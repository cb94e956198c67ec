"""Looks closer at what ``headwise bench --mechanisms`` compares: sizes, layers, features."""

from collections.abc import Iterator

import headwise as hw
from benchmarks.figures import Figure, figure, main
from headwise.cli.bench.mechanisms import (
    CONTENDERS,
    MINILM_SHAPE,
    check,
    crossings,
    error_of,
    outcomes,
    precise,
    random_states,
    real_states,
)
from headwise.cli.bench.mechanisms.compare import LAYER
from headwise.cli.bench.mechanisms.made import Made

_LENGTHS = (256, 512, 1031, 2048, 3001, 4096, 8192)
_LAYERS = 6
_REAL = 4096
_FEW, _DRAWS = 1024, 5
_COUNTS = (64, 256, 1024, 4096)
_WORDS = {False: "full", True: "causal"}


def times(seconds: float) -> Iterator[Figure]:
    """Compare with exact attention, round lengths and uneven ones, and name the crossovers."""
    random = random_states(MINILM_SHAPE, _LENGTHS[-1])
    for causal, form in _WORDS.items():
        check(CONTENDERS, MINILM_SHAPE, causal=causal)
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
            never = crossed.tokens is None
            tokens = crossed.longest if crossed.tokens is None else crossed.tokens
            yield figure(
                f"{crossed.mechanism} {form} {crossed.work}",
                f"faster than exact attention {'never up to' if never else 'from about'}",
                [float(tokens)],
                "tokens",
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


def features(_: float) -> Iterator[Figure]:
    """Measure how the error of random features falls with their number, over several draws."""
    kinds = {"random": random_states(MINILM_SHAPE, _FEW), "real": real_states(LAYER, _FEW)}
    for kind, states in kinds.items():
        exact = precise(states, causal=False)
        for count in _COUNTS:
            mechanisms = (hw.nn.RandomFeatures(count, seed=seed) for seed in range(_DRAWS))
            seen = [error_of(Made(one, None).forward(states), exact) for one in mechanisms]
            name = f"{count:,} random features"
            yield figure(name, f"relative error, {kind} states, {_FEW:,} tokens", seen, "")


if __name__ == "__main__":
    main("benchmarks.mechanisms", __doc__, {"times": times, "errors": errors, "features": features})

"""The grid behind the targets; ``headwise bench`` measures a selection of it."""

from headwise.cli.bench import Case
from headwise.cli.bench.cases import (
    causal,
    decode,
    full,
    no_gain,
    overhead,
    series,
    short,
    window,
)
from headwise.patterns import Causal

_LENGTHS = (1024, 2048, 4096, 1031, 3001)
_TRAINING_LENGTHS = (1024, 2048, 1031, 3001)
_HEAD_DIMS = (64, 128, 80)


def _forward(dtype: str) -> tuple[Case, ...]:
    return tuple(
        kind(length, head_dim, dtype)
        for length in _LENGTHS
        for head_dim in _HEAD_DIMS
        for kind in (full, causal)
    )


def _training(dtype: str) -> tuple[Case, ...]:
    return tuple(
        kind(length, head_dim, dtype, backward=True)
        for length in _TRAINING_LENGTHS
        for head_dim in _HEAD_DIMS
        for kind in (full, causal)
    )


GROUPS: dict[str, tuple[Case, ...]] = {
    "forward": _forward("float32"),
    "half": _forward("bfloat16"),
    "float16": (
        full(1024, 64, "float16"),
        causal(1024, 64, "float16"),
        causal(1031, 80, "float16"),
    ),
    "short": (short(), short("bfloat16")),
    "training": _training("float32"),
    "training-half": _training("bfloat16"),
    "decode": (
        *(decode(dtype) for dtype in ("float32", "bfloat16", "float16")),
        *(decode(dtype, queries=n) for n in (4, 16) for dtype in ("float32", "bfloat16")),
    ),
    "overhead": tuple(overhead(length) for length in (8, 16, 32)),
    "window": (
        window(4096),
        window(4096, "bfloat16"),
        window(4096, backward=True),
        window(4096, "bfloat16", backward=True),
    ),
    "series": (series(), series(backward=True)),
    "no-gain": (
        no_gain(),
        overhead(16, backward=True),
        Case("first-tokens-33x64", 8, 8, 1, 33, 64, Causal()),
        Case("chunk-20-of-2048x64", 12, 12, 20, 2048, 64, Causal()),
    ),
}

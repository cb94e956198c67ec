"""The cases that ``headwise bench`` measures: a quick round, and the everyday one."""

from headwise.cli.bench.cases import (
    Case,
    causal,
    decode,
    full,
    no_gain,
    overhead,
    series,
    short,
    window,
)

QUICK: tuple[Case, ...] = (
    causal(1024, 64),
    causal(1024, 64, "bfloat16"),
    causal(1024, 64, backward=True),
    window(2048),
    decode(),
    decode("bfloat16"),
    overhead(16),
    no_gain(),
)

EVERYDAY: tuple[Case, ...] = (
    full(1024, 64),
    causal(1024, 64),
    full(4096, 64),
    causal(4096, 64),
    causal(3001, 80),
    full(1024, 64, "bfloat16"),
    causal(3001, 80, "bfloat16"),
    causal(1024, 64, backward=True),
    causal(1031, 80, backward=True),
    causal(2048, 64, "bfloat16", backward=True),
    window(4096),
    window(2048, backward=True),
    decode(),
    decode("bfloat16"),
    decode(queries=4),
    short(),
    short("bfloat16"),
    series(backward=True),
    overhead(8),
    overhead(32),
    no_gain(),
)

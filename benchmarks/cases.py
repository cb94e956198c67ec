"""The grid behind the targets; ``headwise bench`` measures a selection of it."""

from headwise.cli.bench import EVERYDAY, Case
from headwise.cli.bench.cases import square
from headwise.patterns import Causal

_LENGTHS = (1024, 2048, 4096, 1031, 3001)
_HEAD_DIMS = (64, 128, 80)

FORWARD = tuple(
    square(f"{name}-{length}x{head_dim}", length, head_dim, pattern)
    for length in _LENGTHS
    for head_dim in _HEAD_DIMS
    for name, pattern in (("full", None), ("causal", Causal()))
)

GROUPS: dict[str, tuple[Case, ...]] = {
    "forward": FORWARD,
    "decode": tuple(case for case in EVERYDAY if case.name.startswith("decode")),
    "short": tuple(case for case in EVERYDAY if case.name.startswith("short")),
    "window": tuple(case for case in EVERYDAY if case.name.startswith("window")),
    "no-gain": tuple(case for case in EVERYDAY if case.dtype != "float32"),
}

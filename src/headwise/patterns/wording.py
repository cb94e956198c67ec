"""What is said of patterns that do not fit."""

from headwise.errors import PatternError
from headwise.patterns.base import Pattern

_HINTS = {
    "str": "patterns.parse(text) reads a pattern from text",
    "BlockMask": "patterns.from_block_mask(mask) reads it",
    "function": "patterns.from_mask_mod(function, batch, heads, q_len, kv_len) reads it",
    "list": "PerHead([…]) has a pattern for every head; patterns are joined with & and |",
    "tuple": "PerHead([…]) has a pattern for every head; patterns are joined with & and |",
}


def check_pattern(caller: str, pattern: object) -> Pattern:
    """Return a pattern, or refuse what is none."""
    if isinstance(pattern, Pattern):
        return pattern
    if isinstance(pattern, type):
        got, hint = f"the class {pattern.__name__}", f"{pattern.__name__}(…) makes one of them"
    else:
        got = type(pattern).__name__
        hint = _HINTS.get(
            got,
            "wrap a boolean mask as Dense(mask), a padding mask (batch, kv_len) as "
            "KeyMask(mask); numbers to add to the scores go into bias=",
        )
    raise PatternError(f"{caller}: pattern must be a Pattern, got {got}\n  hint: {hint}")


def check_sizes(caller: str, pattern: Pattern, batch: int, heads: int) -> None:
    """Refuse a pattern that tells apart another number of samples or heads than the call has."""
    for name, held, given in (
        ("samples", pattern.batch_size, batch),
        ("heads", pattern.num_heads, heads),
    ):
        # Compilers do not follow `in` for sizes that they do not know.
        if held is not None and held != 1 and held != given:  # noqa: PLR1714
            raise PatternError(
                f"{caller}: the pattern must tell apart as many {name} as the call has, or 1, "
                f"got {held} for {given}\n  pattern  {pattern_name(pattern)}\n"
                f"  hint: build the pattern for the {name} of this call"
            )


def pattern_name(pattern: Pattern) -> str:
    """Return the ``repr`` of a pattern, cut to one line of a message."""
    if pattern.nbytes > 100:
        return f"{type(pattern).__name__}(…), {pattern.nbytes:,} bytes"
    text = repr(pattern)
    return text if len(text) <= 100 else f"{text[:97]}..."

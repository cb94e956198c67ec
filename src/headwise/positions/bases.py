"""The base of growing wavelengths, and the numbers that settings are made of."""

from math import isfinite


def is_number(given: object) -> bool:
    """Say whether something is a finite number; flags are not."""
    return isinstance(given, int | float) and not isinstance(given, bool) and isfinite(given)


def check_base(caller: str, base: float, hint: str) -> float:
    """Return the base as a float; refuse one that makes no waves."""
    if not is_number(base) or base <= 1:
        raise ValueError(
            f"{caller}: base must be a finite number above 1, got {base!r}\n  hint: {hint}"
        )
    return float(base)

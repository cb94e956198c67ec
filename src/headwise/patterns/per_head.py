"""One pattern for every query head."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import Any

from typing_extensions import override

from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns.base import Pattern


@dataclass(frozen=True)
class PerHead(Pattern):
    """Different patterns for different query heads.

    Args:
        patterns: One pattern per query head, in the order of the heads; samples may differ inside
            them, heads may not.

    Raises:
        PatternError: No pattern at all, something that is none, a pattern that tells heads apart
            itself, or patterns for different numbers of samples.

    Example:
        >>> from headwise.patterns import Causal, Window
        >>> PerHead([Causal(), Causal() & Window(1, 0)]).num_heads
        2
    """

    patterns: Any

    def __post_init__(self) -> None:
        if isinstance(self.patterns, Pattern) or not isinstance(self.patterns, Iterable):
            raise _refusal("must be a sequence of patterns", repr(self.patterns))
        parts = tuple(self.patterns)
        object.__setattr__(self, "patterns", parts)
        strangers = [part for part in parts if not isinstance(part, Pattern)]
        if not parts or strangers:
            raise _refusal(
                "must hold a pattern for every query head",
                repr(strangers[0]) if strangers else "none",
            )
        if any(part.num_heads not in (None, 1) for part in parts):
            counts = [part.num_heads for part in parts]
            raise _refusal("must be the same for all heads, each by itself", f"heads {counts}")
        sizes = {part.batch_size for part in parts} - {None, 1}
        if len(sizes) > 1:
            raise _refusal("must tell apart the same samples", f"{sorted(sizes)}")

    @property
    @override
    def batch_size(self) -> int | None:
        sizes = {part.batch_size for part in self.patterns} - {None}
        told_apart = sizes - {1}
        return told_apart.pop() if told_apart else (1 if sizes else None)

    @property
    @override
    def num_heads(self) -> int | None:
        return len(self.patterns)

    @property
    @override
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.patterns)

    @property
    @override
    def shift_invariant(self) -> bool:
        return all(part.shift_invariant for part in self.patterns)

    @property
    @override
    def step(self) -> int:
        return gcd(*(part.step for part in self.patterns))

    @override
    def sample(self, batch: int, head: int) -> Pattern:
        part: Pattern = self.patterns[head if len(self.patterns) > 1 else 0]
        return part.sample(batch, 0)

    @override
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        assert len(self.patterns) == 1, "a plain pattern speaks of one head"
        only: Pattern = self.patterns[0]
        return only._allows(q_pos, kv_pos)

    @override
    def simplified(self) -> Pattern:
        parts = tuple(part.simplified() for part in self.patterns)
        return parts[0] if len(set(parts)) == 1 else PerHead(parts)


def _refusal(rule: str, got: str) -> PatternError:
    return PatternError(
        f"PerHead: patterns {rule}, got {got}\n"
        "  hint: PerHead([Causal(), Window(4, 4)]) gives head 0 one pattern and head 1 another"
    )

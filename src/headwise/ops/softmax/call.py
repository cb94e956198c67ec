"""One attention call with every default settled; what api.py hands to a backend."""

from typing import NamedTuple

from torch import Tensor

from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid


class Attended(NamedTuple):
    """Result of attention: the output, and the natural log of each row's softmax denominator."""

    output: Tensor
    lse: Tensor


class Computed(NamedTuple):
    """What a backend returns; ``lse`` may be missing where it was not asked for."""

    output: Tensor
    lse: Tensor | None


class Distances(NamedTuple):
    """A bias read by distance: query position minus key position.

    ``table`` is (q_heads, width) and contiguous, in float32 or wider; its column ``c`` speaks of
    the distance ``lowest + c``. It holds every distance that occurs in the call.
    """

    table: Tensor
    lowest: int


class Call(NamedTuple):
    """A call whose tensors are (batch, heads, length, dim) and fit together.

    ``pattern`` is ``None`` where every query sees every key; ``places`` holds one grid for all
    samples, or one per sample. At most one of ``bias``, ``slopes`` and ``distances`` is given;
    ``slopes`` (q_heads,) lower each score by the distance times the slope of the query head.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    pattern: Pattern | None
    bias: Tensor | None
    slopes: Tensor | None
    distances: Distances | None
    scale: float
    softcap: float | None
    sinks: Tensor | None
    dropout_p: float
    places: tuple[Grid, ...]
    want_lse: bool
    wants_gradient: bool

    @property
    def group(self) -> int:
        """How many query heads read one key/value head."""
        return self.query.shape[1] // max(self.key.shape[1], 1)

    def allowed(self) -> Tensor | None:
        """Spell the pattern out on the device of the query; ``None`` where all is allowed."""
        if self.pattern is None:
            return None
        return self.pattern.spelled(self.places).to(self.query.device)

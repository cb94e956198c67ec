"""Where a token stands, as numbers added to the scores."""

from headwise.positions.alibi import Alibi
from headwise.positions.relative_bias import RelativeBias

__all__ = ["Alibi", "RelativeBias"]

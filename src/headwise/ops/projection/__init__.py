"""Linear maps in inference: the fastest of several libraries, and which one that is."""

from headwise.ops.projection.api import linear
from headwise.ops.projection.choice import Projection, explain_linear
from headwise.ops.projection.packed import packed_bytes, release_packed
from headwise.ops.projection.switch import projections

__all__ = [
    "Projection",
    "explain_linear",
    "linear",
    "packed_bytes",
    "projections",
    "release_packed",
]

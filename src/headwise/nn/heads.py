"""Small steps of a layer: heads, their norms, what may meet."""

from functools import reduce
from operator import and_

from torch import Tensor, nn

from headwise._dims import Split
from headwise.patterns import Dense, Pattern


def split(x: Tensor, heads: int) -> Split:
    """Turn (…, length, heads * dim) into (…, heads, length, dim)."""
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-3, -2)


def normalised(norm: nn.Module, x: Split) -> Split:
    """Normalise in the norm's own dtype, where autocast made queries and keys of another."""
    weight = next(norm.parameters(), x)
    found: Tensor = norm(x.to(weight.dtype)).to(x.dtype)
    return found


def joined(own: Pattern | None, given: Pattern | None, mask: Tensor | None) -> Pattern | None:
    """Join the layer's pattern, the call's, and a mask spelled out."""
    parts = [part for part in (own, given) if part is not None]
    if mask is not None:
        parts.append(Dense(mask))
    return reduce(and_, parts) if parts else None

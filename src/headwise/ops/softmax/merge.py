"""Joins results over separate keys by their log-sum-exp."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from headwise.errors import ShapeError
from headwise.ops.softmax.call import Attended


def merge(parts: Iterable[Attended]) -> Attended:
    """Join the results of one query over separate sets of keys to the result over all of them.

    Each part weighs ``exp(lse - lse of all)``, as in "Self-attention Does Not Need O(n²) Memory"
    (Rabe and Staats, 2021). Weights are computed against the highest ``lse``, so that nothing
    overflows, and sums are taken in float32 or wider and rounded once.

    Args:
        parts: Results of ``attend_with_lse`` for the same queries: outputs
            (batch…, heads, q_len, value_dim) and log-sum-exps (batch…, heads, q_len), at least one.

    Returns:
        The output in the dtype of the first part's, and the log-sum-exp in float32 or wider. A
        query that sees nothing in any part gets zeros and ``-inf``.

    Raises:
        ShapeError: No part at all, or parts of different shapes.

    Example:
        >>> import torch, headwise as hw
        >>> q, k, v = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 6, 4), torch.ones(1, 1, 6, 4)
        >>> whole = hw.attend_with_lse(q, k, v)
        >>> halves = [hw.attend_with_lse(q, k[:, :, part], v[:, :, part])
        ...           for part in (slice(0, 2), slice(2, 6))]
        >>> bool((hw.merge(halves).lse - whole.lse).abs().max() < 1e-6)
        True
    """
    found = _checked(parts)
    return joined([Attended(_without_closed(*part), part.lse) for part in found])


def joined(parts: Sequence[Attended]) -> Attended:
    """Join parts that bring zeros for the queries they are closed to."""
    work = torch.float32
    for part in parts:
        work = torch.promote_types(work, torch.promote_types(part.output.dtype, part.lse.dtype))
    lse = torch.stack([part.lse.to(work) for part in parts])
    top = lse.detach().amax(0)
    top = top.masked_fill(top == float("-inf"), 0.0)
    weights = (lse - top).exp()
    total = weights.sum(0)
    closed = total == 0.0
    shares = (weights / total.masked_fill(closed, 1.0)).unsqueeze(-1)
    output = shares[0] * parts[0].output.to(work)
    for share, part in zip(shares[1:], parts[1:], strict=True):
        output = torch.addcmul(output, share, part.output.to(work))
    found = top + total.masked_fill(closed, 1.0).log()
    return Attended(output.to(parts[0].output.dtype), found.masked_fill(closed, float("-inf")))


def _without_closed(output: Tensor, lse: Tensor) -> Tensor:
    """Return zeros for closed queries; what others put there has no weight, NaN included."""
    return output.masked_fill((lse == float("-inf")).unsqueeze(-1), 0.0)


def _checked(parts: Iterable[Attended]) -> list[Attended]:
    found = [Attended(*part) for part in parts]
    if not found:
        raise ShapeError(
            "merge: parts must hold at least one result, got none\n"
            "  hint: attend_with_lse(…) gives results to join"
        )
    for part in found:
        alike = part.output.shape == found[0].output.shape
        if not alike or part.lse.shape != part.output.shape[:-1]:
            shapes = [(tuple(each.output.shape), tuple(each.lse.shape)) for each in found]
            raise ShapeError(
                "merge: parts must be results for the same queries, (…, value_dim) and (…), "
                f"got {shapes}\n  hint: attend_with_lse(…) gives both"
            )
    return found

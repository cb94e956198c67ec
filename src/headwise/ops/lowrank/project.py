"""Keys or values times a projection along their length."""

import torch
from torch import Tensor

from headwise._forks import alone_after_fork
from headwise.ops.projection.choice import against_all, against_onednn


@alone_after_fork
def project_length(projection: Tensor, tokens: Tensor) -> Tensor:
    """Return ``projection @ tokens``, in inference on float32 by oneDNN where that is faster.

    Args:
        projection: (rank, length), or (heads, rank, length).
        tokens: (batch, heads, length, dim), any strides.

    Returns:
        (batch, heads, rank, dim), with the strides that the product left.
    """
    batch, heads, _, dim = tokens.shape
    rank = projection.shape[-2]
    if projection.ndim == 2:
        # Heads side by side, as a layer made them: one product for each sample.
        beside = tokens.transpose(1, 2).flatten(2)
        found = _products(projection.expand(batch, -1, -1), beside)
        return found.view(batch, rank, heads, dim).transpose(1, 2)
    # Samples side by side: one product for each head.
    beside = tokens[0] if batch == 1 else tokens.permute(1, 2, 0, 3).flatten(2)
    found = _products(projection, beside)
    return found.view(heads, rank, batch, dim).permute(2, 0, 1, 3)


def first_columns(projection: Tensor, length: int) -> Tensor:
    """Return the columns of a projection for so many tokens, (…, rank, length).

    A length that an export leaves open may be that of all columns, which torch's slices rule out.
    """
    if isinstance(length, torch.SymInt):
        return projection.index_select(-1, torch.arange(length, device=projection.device))
    return projection[..., :length]


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Return (n, rank, length) times (n, length, columns)."""
    if _onednn_is_faster(left, right):
        pairs = zip(left, right.contiguous(), strict=True)
        return torch.stack([_by_onednn(one.contiguous(), other) for one, other in pairs])
    return torch.bmm(left, right)


def _onednn_is_faster(left: Tensor, right: Tensor) -> bool:
    # Torch takes oneDNN for narrower dtypes by itself.
    if left.dtype != torch.float32 or not left.shape[0]:
        return False
    if next(against_all(right[0].mT, left[0], None), None) is not None:
        return False
    return next(against_onednn(right[0], left[0].contiguous()), None) is None


def _by_onednn(left: Tensor, right: Tensor) -> Tensor:
    # A linear map with the tokens for a weight, which is read as it lies.
    found: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.mT, None, "none", [], "")
    return found

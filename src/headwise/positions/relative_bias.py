"""A learned bias per head that depends on the distance, in buckets that widen with it."""

from functools import lru_cache
from math import log

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwise._checks import is_int
from headwise.errors import ShapeError


class RelativeBias(nn.Module):
    """Add a learned number per head and bucket of distances, as T5 does.

    Near distances have a bucket each; from half of a side's buckets on they widen logarithmically
    up to ``max_distance``, beyond which all share the last (Raffel et al., 2020). Pass the object
    as ``bias=``; it is never spelled out to (q_len, kv_len) by the compiled kernels. Positions are
    those of the call, so a decoding step adds what the full pass adds. T5 has no such bias in
    cross attention: leave it out there.

    Args:
        num_heads: Query heads.
        num_buckets: Distances told apart; in the two-sided form half of them for each side.
        max_distance: The distance, in tokens, from which on all share a bucket.
        bidirectional: Whether keys after the query have buckets of their own (encoders). Without,
            they share the bucket of distance 0 (decoders, where a causal pattern hides them).
        device: Where the weight is made.
        dtype: Its dtype.

    Attributes:
        weight: The bias of each bucket and head, (num_buckets, num_heads), drawn from a normal
            distribution of spread 0.02. The state dict is that of T5's ``relative_attention_bias``.

    Raises:
        ShapeError: Fewer than one head, fewer buckets than the widening needs (2 a side), or a
            ``max_distance`` within the distances that have a bucket each.

    Example:
        >>> import torch, headwise as hw
        >>> bias = hw.positions.RelativeBias(4)
        >>> x = torch.ones(1, 4, 3, 8)
        >>> hw.attend(x, x, x, bias=bias).sum().backward()
        >>> bias.weight.grad.shape
        torch.Size([32, 4])
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check("num_heads", num_heads, 1, "give the number of query heads")
        least = 4 if bidirectional else 2
        _check("num_buckets", num_buckets, least, "T5 has 32; each side needs at least 2")
        side = num_buckets // 2 if bidirectional else num_buckets
        _check("max_distance", max_distance, side // 2 + 1, "T5 has 128; nearer ones are exact")
        self.num_heads, self.num_buckets = num_heads, num_buckets
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self._side, self._starts = side, _starts(side, max_distance)
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew."""
        nn.init.normal_(self.weight, std=0.02)

    def table(self, lowest: int, highest: int) -> Tensor:
        """Return the bias of every distance from ``lowest`` to ``highest``, both included.

        Args:
            lowest: The least distance: position of the query minus position of the key.
            highest: The greatest.

        Returns:
            (num_heads, highest - lowest + 1) in the dtype of ``weight``, differentiable to it.
            Column ``c`` speaks of the distance ``lowest + c``.
        """
        distances = torch.arange(lowest, highest + 1, device=self.weight.device)
        return self.weight.t().index_select(1, self.buckets(distances))

    def buckets(self, distances: Tensor) -> Tensor:
        """Return the row of ``weight`` that each distance (query minus key position) reads."""
        starts = torch.tensor(self._starts, device=distances.device)
        if not self.bidirectional:
            return torch.bucketize(distances.clamp(min=0), starts, right=True)
        return torch.bucketize(distances.abs(), starts, right=True) + self._side * (distances < 0)

    @override
    def extra_repr(self) -> str:
        return (
            f"{self.num_heads}, num_buckets={self.num_buckets}, "
            f"max_distance={self.max_distance}, bidirectional={self.bidirectional}"
        )


@lru_cache(maxsize=64)
def _starts(count: int, max_distance: int) -> tuple[int, ...]:
    """Return the distance at which each of ``count`` buckets but the first begins.

    They are found once, in the float32 arithmetic of T5, whose rounding decides where a bucket
    begins; no compiler can then round otherwise.
    """
    exact = count // 2
    far = torch.arange(exact, max_distance + 1, device="cpu")
    share = torch.log(far.float() / exact) / log(max_distance / exact)
    wide = (exact + (share * (count - exact)).long()).clamp(max=count - 1)
    found = torch.searchsorted(wide, torch.arange(exact + 1, count, device="cpu"))
    return (*range(1, exact + 1), *(exact + found).tolist())


def _check(name: str, number: int, least: int, hint: str) -> None:
    if not is_int(number) or number < least:
        raise ShapeError(
            f"RelativeBias: {name} must be an int of at least {least}, got {number!r}\n"
            f"  hint: {hint}"
        )

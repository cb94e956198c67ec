"""Checks what a call adds to its scores: numbers, or a rule of distances."""

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from headwise._checks import refuse_dtypes, refuse_shapes
from headwise.ops.softmax.call import Distances
from headwise.patterns.grid import Grid
from headwise.positions import Alibi, RelativeBias

Bias: TypeAlias = Tensor | Alibi | RelativeBias


class SettledBias(NamedTuple):
    """A bias in the form that ``Call`` has; at most one field is given."""

    bias: Tensor | None = None
    slopes: Tensor | None = None
    distances: Distances | None = None

    @property
    def wants_gradient(self) -> bool:
        """Whether autograd asks for the derivative by the numbers added."""
        numbers = self.bias if self.distances is None else self.distances.table
        return numbers is not None and numbers.requires_grad


NO_BIAS = SettledBias()


def settle_bias(
    caller: str, bias: Bias, query: Tensor, key: Tensor, places: tuple[Grid, ...]
) -> SettledBias:
    """Return the bias in float32 or wider, with its finite numbers kept finite, or refuse it."""
    work = torch.promote_types(query.dtype, torch.float32)
    if isinstance(bias, Alibi):
        slopes = bias.slopes
        _check_heads(caller, bias, query, slopes=slopes)
        return SettledBias(slopes=slopes.to(query.device, work))
    if isinstance(bias, RelativeBias):
        _check_heads(caller, bias, query, weight=bias.weight)
        return SettledBias(distances=_by_distance(caller, bias, query, places, work))
    return SettledBias(bias=_spelled_out(caller, bias, query, key, work))


def _by_distance(
    caller: str, bias: RelativeBias, query: Tensor, places: tuple[Grid, ...], work: torch.dtype
) -> Distances:
    if bias.weight.device != query.device:
        raise refuse_dtypes(
            caller,
            "the weight of RelativeBias must be on the device of query",
            f"move it with .to({str(query.device)!r})",
            query=query,
            weight=bias.weight,
        )
    # An empty batch may have no places, and an empty length no pairs; a table of one will do.
    gaps = [place.q_offset - place.kv_offset for place in places] or [0]
    q_len, kv_len = (places[0].q_len, places[0].kv_len) if places else (1, 1)
    lowest, highest = min(gaps) - max(kv_len, 1) + 1, max(gaps) + max(q_len, 1) - 1
    return Distances(_widened(bias.table(lowest, highest), work).contiguous(), lowest)


def _spelled_out(
    caller: str, bias: Tensor, query: Tensor, key: Tensor, work: torch.dtype
) -> Tensor:
    """Return the tensor with four dimensions."""
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        got = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
        raise refuse_dtypes(
            caller,
            f"bias must be a floating-point tensor, Alibi or RelativeBias, got {got}",
            "a boolean mask is a pattern: pass Dense(mask)",
            query=query,
            key=key,
        )
    full = (*query.shape[:-1], key.shape[-2])
    fits = bias.ndim in (0, 1, 2, query.ndim) and all(
        have in (1, want) for have, want in zip(reversed(bias.shape), reversed(full), strict=False)
    )
    if not fits:
        raise refuse_shapes(
            caller,
            f"bias must broadcast to {full}, with 2 or fewer dimensions or all {len(full)}",
            "say which axis is missing with bias[:, None] or bias[None]",
            query=query,
            key=key,
            bias=bias,
        )
    bias = _widened(bias, work)
    if bias.ndim == 4:
        return bias
    if bias.ndim > 4:
        return bias.expand(*query.shape[:-3], *bias.shape[-3:]).flatten(0, -4)
    return bias.reshape((1,) * (4 - bias.ndim) + bias.shape)


def _widened(numbers: Tensor, work: torch.dtype) -> Tensor:
    """Return the numbers in the dtype of the sums, where those that are finite stay so."""
    limit = torch.finfo(work).max
    if torch.finfo(numbers.dtype).max > limit:
        numbers = torch.where(numbers.isinf(), numbers, numbers.clamp(-limit, limit))
    return numbers.to(work)


def _check_heads(caller: str, bias: Alibi | RelativeBias, query: Tensor, **numbers: Tensor) -> None:
    q_heads = query.shape[-3]
    if bias.num_heads != q_heads:
        kind = type(bias).__name__
        raise refuse_shapes(
            caller,
            f"{kind} must have as many heads as query, got {bias.num_heads} and {q_heads}",
            f"make it with num_heads={q_heads}; grouped heads count as query heads",
            query=query,
            **numbers,
        )

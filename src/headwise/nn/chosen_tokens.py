"""Which tokens of a batch are global, and where they stand."""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise._checks import refuse_shapes
from headwise.errors import PatternError, ShapeError
from headwise.ops.watchers import is_transformed
from headwise.patterns import GlobalTokens
from headwise.patterns.content import Numbers


class ChosenTokens(NamedTuple):
    """Global tokens of a batch.

    ``flags`` (batch, length) marks them. ``sample``, ``place`` and ``slot`` (tokens,) say of each
    one its sample, its position, and its number among the global tokens of its sample, of which
    there are ``slots`` at most.
    """

    flags: Tensor
    sample: Tensor
    place: Tensor
    slot: Tensor
    slots: int


def chosen_tokens(which: Numbers, real: Tensor | None, x: Tensor) -> ChosenTokens | None:
    """Find the global tokens; ``None`` where no sample has any."""
    tokens, length = GlobalTokens(which), x.shape[1]
    if isinstance(tokens.which, tuple):
        _check_positions(tokens.which, length)
        flags = torch.zeros(length, dtype=torch.bool, device=x.device)
        flags[list(tokens.which)] = True
        flags = flags.expand(len(x), length)
        if real is None:
            return _alike(tokens.which, flags)
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg="how many tokens are global decides sizes, so is read first")
    if is_transformed():
        raise PatternError(
            "LongformerAttention: under a torch.func transform global_tokens must be positions, "
            "without kv_mask, for their number decides sizes\n"
            "  hint: give positions, or call the layer outside the transform"
        )
    if not isinstance(tokens.which, tuple):
        flags = flags_of("global_tokens", tokens.which.tensor, x)
    flags = flags if real is None else flags & real
    sample, place = flags.nonzero(as_tuple=True)
    if not len(sample):
        return None
    slot = (flags.cumsum(1) - 1)[sample, place]
    return ChosenTokens(flags, sample, place, slot, int(slot.max()) + 1)


def _alike(positions: tuple[int, ...], flags: Tensor) -> ChosenTokens | None:
    """Return the same positions in every sample, without looking at numbers in tensors."""
    if not positions:
        return None
    batch, count = len(flags), len(positions)
    place = torch.tensor(positions, device=flags.device).repeat(batch)
    samples = torch.arange(batch, device=flags.device).repeat_interleave(count)
    slot = torch.arange(count, device=flags.device).repeat(batch)
    return ChosenTokens(flags, samples, place, slot, count)


def flags_of(name: str, flags: Tensor, x: Tensor) -> Tensor:
    """Return flags as (batch, length), or refuse those of other sizes."""
    batch, length = x.shape[:2]
    if tuple(flags.shape) not in ((length,), (1, length), (batch, length)):
        raise refuse_shapes(
            "LongformerAttention",
            f"{name} must be (batch, length) or (length,), got {tuple(flags.shape)} for a batch of "
            f"{batch} and {length} tokens",
            "give every token of x one entry, padding included",
            x=x,
            **{name: flags},
        )
    return flags.to(x.device).expand(batch, length)


def _check_positions(positions: tuple[int, ...], length: int) -> None:
    if positions and positions[-1] >= length:
        raise ShapeError(
            f"LongformerAttention: global_tokens must be positions below {length}, "
            f"got {positions[-1]}\n"
            "  hint: positions count the tokens of x from 0; booleans mark them instead"
        )

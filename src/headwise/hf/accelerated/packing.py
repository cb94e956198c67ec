"""Where the real tokens of a padded batch stand, and how they are laid one after the other."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from headwise.hf.pattern_mask import PatternMask
from headwise.patterns import Both, Causal, Documents, Full, KeyMask, Pattern


@dataclass(frozen=True)
class Packing:
    """The real tokens of a batch in one row, sample after sample.

    Attributes:
        size: batch, length.
        place: Where each real token stands in the flattened batch, (tokens,).
        mask: What they may attend to, as the layers take it.
    """

    size: tuple[int, int]
    place: Tensor
    mask: PatternMask

    def packed(self, padded: Tensor) -> Tensor:
        """Return (batch or 1, length, …) as (1, tokens, …)."""
        batch, length = self.size
        if padded.shape[0] == 1 != batch:
            return padded[0].index_select(0, self.place % length).unsqueeze(0)
        return padded.flatten(0, 1).index_select(0, self.place).unsqueeze(0)

    def padded(self, packed: Tensor) -> Tensor:
        """Return (1, tokens, …) as (batch, length, …), with zeros at padding."""
        batch, length = self.size
        found = packed.new_zeros(batch * length, *packed.shape[2:])
        return found.index_copy_(0, self.place, packed[0]).view(batch, length, *packed.shape[2:])


_known: Any = WeakTensorKeyDictionary()


def packing_of(mask: PatternMask) -> Packing | str:
    """Return how the tokens of a call are packed; the reason where they must not be.

    Args:
        mask: What our mask function made for the call; asked again, it gets the same answer.
    """
    found: Packing | str | None = _known.get(mask)
    if found is None:
        found = _known[mask] = _made(mask)
    return found


NOTHING = "nothing is padded"


def _made(mask: PatternMask) -> Packing | str:
    batch, _, q_len, kv_len = mask.shape
    if q_len != kv_len or mask.q_offset or mask.kv_offset:
        return "its queries and keys are not the same tokens"
    rest, real = _parts(mask.pattern)
    if real is None or bool(real.all()):
        return NOTHING
    real = real.to(mask.device).expand(batch, kv_len)
    if not bool(real.any()):
        return "the batch is padding alone"
    if not isinstance(rest, Full | Causal):
        if not rest.shift_invariant:
            return "its mask says more than distances and padding"
        starts = real & ~torch.nn.functional.pad(real[:, :-1], (1, 0))
        if bool((starts.sum(1) > 1).any()):
            return "its mask counts distances, and padding stands between real tokens"
    sample, _ = real.nonzero(as_tuple=True)
    total = len(sample)
    packed = PatternMask(
        (rest & Documents(sample)).simplified(),
        (1, total, total),
        0,
        0,
        mask.device,
        mask.note,
        mask.model,
    )
    return Packing((batch, kv_len), real.flatten().nonzero().squeeze(1), packed)


def _parts(pattern: Pattern) -> tuple[Pattern, Tensor | None]:
    """Return a pattern without what it says of padding, and that, (batch or 1, length)."""
    if isinstance(pattern, KeyMask):
        real: Tensor = pattern.mask.tensor
        return Full(), real if real.ndim == 2 else real.unsqueeze(0)
    if not isinstance(pattern, Both):
        return pattern, None
    first, one = _parts(pattern.first)
    second, other = _parts(pattern.second)
    marks = [real for real in (one, other) if real is not None]
    both = marks[0] & marks[-1] if marks else None
    return (first & second).simplified(), both

"""Memory for the tokens of a layer, and how tokens are copied into it."""

from typing import Protocol, runtime_checkable
from weakref import WeakSet

import torch
from torch import Tensor

from headwise.cache.row_counts import RowCounts, as_tensor
from headwise.cache.row_formats import Tensors


@runtime_checkable
class HasRoom(Protocol):
    """Who keeps tokens in a room."""

    _room: "Room | None"


class Room:
    """Tensors with room for tokens along their third axis.

    While a fork reads them, too, they are copied before they are written to.
    """

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self._users: WeakSet[HasRoom] = WeakSet()

    def share(self, *users: "HasRoom") -> None:
        """Note who reads these tensors, as long as they do."""
        self._users.update(users)

    def is_shared(self, user: "HasRoom") -> bool:
        """Say whether anybody but ``user`` reads these tensors."""
        return any(other is not user and other._room is self for other in self._users)

    @property
    def tokens(self) -> int:
        """How many tokens there is room for."""
        return self.tensors[0].shape[2]

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)


def room_like(rows: Tensors, tokens: int) -> Room:
    """Allocate room for ``tokens`` that may be written inside and outside inference mode."""
    with torch.inference_mode(False):
        return Room(
            tuple(
                torch.empty(
                    (*row.shape[:2], tokens, *row.shape[3:]), dtype=row.dtype, device=row.device
                )
                for row in rows
            )
        )


def copied(tensors: Tensors) -> Room:
    """Return a room of its own with the same contents."""
    twin = room_like(tensors, tensors[0].shape[2])
    for new, old in zip(twin.tensors, tensors, strict=True):
        new.copy_(old.detach())
    return twin


def copy_tokens(
    target: Tensors, source: Tensors, counts: RowCounts, *, to: RowCounts = 0, start: RowCounts = 0
) -> None:
    """Copy so many tokens of each row, from ``start`` on, to where ``to`` says."""
    if isinstance(counts, int) and isinstance(to, int) and isinstance(start, int):
        for new, old in zip(target, source, strict=True):
            new[:, :, to : to + counts] = old[:, :, start : start + counts]
        return
    indices = token_indices(counts, start, to, source[0].shape[0])
    rows, sources, targets = (index.to(source[0].device) for index in indices)
    for new, old in zip(target, source, strict=True):
        new[rows, :, targets] = old[rows, :, sources]


def blanked(tensors: Tensors, filled: RowCounts) -> Tensors:
    """Return tensors with zeros behind the end of shorter rows, whatever the memory holds there."""
    if isinstance(filled, int):
        return tensors
    found = tuple(torch.zeros_like(tensor) for tensor in tensors)
    copy_tokens(found, tensors, filled)
    return found


def joined_tokens(
    old: Tensors, lengths: RowCounts, new: Tensors, counts: RowCounts, room: int
) -> Tensors:
    """Return the tokens of each row with new ones behind them, as tensors that carry gradients."""
    if isinstance(lengths, int) and isinstance(counts, int):
        pairs = zip(old, new, strict=True)
        return tuple(torch.cat([was[:, :, :lengths], more], 2) for was, more in pairs)
    indices = token_indices(counts, 0, lengths, new[0].shape[0])
    rows, sources, targets = (index.to(new[0].device) for index in indices)
    found = []
    for was, more in zip(old, new, strict=True):
        kept = was[:, :, :room].transpose(1, 2)
        rest = kept.new_zeros(kept.shape[0], room - kept.shape[1], *kept.shape[2:])
        whole = torch.cat([kept, rest], 1)
        whole = whole.index_put((rows, targets), more.transpose(1, 2)[rows, sources])
        found.append(whole.transpose(1, 2))
    return tuple(found)


def token_indices(
    counts: RowCounts, start: RowCounts, to: RowCounts, batch: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return for every token copied its row, where it stands and where it goes, on the CPU."""
    many = as_tensor(counts, batch)
    rows = torch.arange(batch, device="cpu").repeat_interleave(many)
    places = torch.arange(len(rows), device="cpu") - (many.cumsum(0) - many)[rows]
    sources, targets = (places + as_tensor(first, batch)[rows] for first in (start, to))
    return rows, sources, targets

"""Memory for the tokens of a layer, and how tokens are copied into it."""

from collections.abc import Sequence
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
        self._picked_at: tuple[int, ...] | None = None
        self._alike: Tensor | None = None

    def share(self, *users: "HasRoom") -> None:
        """Note who reads these tensors, as long as they do."""
        self._users.update(users)

    def is_shared(self, user: "HasRoom") -> bool:
        """Say whether anybody but ``user`` reads these tensors."""
        return any(other is not user and other._room is self for other in self._users)

    def picked(self, index: Tensor) -> "Room":
        """Return a room whose row ``i`` is row ``index[i]`` of this one."""
        found = Room(tuple(_picked(tensor, index) for tensor in self.tensors))
        found._picked_at = found._versions()
        return found

    def stays_with(self, index: Tensor, tokens: int) -> bool:
        """Say whether picking rows would leave every row as it is, as far as that is known.

        Beams of one source have one memory, and nothing is written to it between two steps. So rows
        that were picked and not written to are compared once.
        """
        if self._picked_at is None or self._picked_at != self._versions():
            return False
        if self._alike is None:
            self._alike = _first_alike([tensor[:, :, :tokens] for tensor in self.tensors])
        return torch.equal(self._alike[index.to("cpu")], self._alike)

    def _versions(self) -> tuple[int, ...]:
        return tuple(tensor._version for tensor in self.tensors)

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


def _picked(tensor: Tensor, index: Tensor) -> Tensor:
    index = index.to(tensor.device)
    if not torch.is_inference_mode_enabled():
        return tensor.index_select(0, index)
    # A tensor made in inference mode could not be written to outside it.
    with torch.inference_mode(False):
        found = tensor.new_empty(len(index), *tensor.shape[1:])
    return torch.index_select(tensor.detach(), 0, index, out=found)


def _first_alike(tensors: Sequence[Tensor]) -> Tensor:
    """Return for each row the first one of its neighbours before it that has the same bits."""
    first = [0]
    for row in range(1, len(tensors[0])):
        same = all(torch.equal(_bits(tensor[row]), _bits(tensor[first[-1]])) for tensor in tensors)
        first.append(first[-1] if same else row)
    return torch.tensor(first, device="cpu")


def _bits(row: Tensor) -> Tensor:
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return row.detach().view(integers[row.element_size()])


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

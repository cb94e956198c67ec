"""Projections of tokens along their length, for low-rank attention: learned, strided, mean."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.functional import pad
from typing_extensions import override

from headwise._checks import refuse_dtypes
from headwise.nn.low_rank_settings import check_places
from headwise.ops.lowrank.project import first_columns, project_length

_CALLER = "LowRank"


class LengthProjection(nn.Module, ABC):
    """Makes fewer tokens of (batch, kv_heads, length, dim); padded ones are 0 already."""

    @abstractmethod
    @override
    def forward(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        """Return (batch, kv_heads, rows, dim).

        Args:
            tokens: Keys or values, 0 where they are padding.
            real: Which of them are real, (batch or 1, length); ``None`` = all.
        """

    @abstractmethod
    def matrix(self, length: int, real: Tensor | None) -> Tensor:
        """Return what ``length`` tokens are multiplied by, (rows, length).

        Heads, or samples and a 1 for heads, may stand in front.
        """

    @abstractmethod
    def rows(self, length: int) -> int:
        """Return how many projected tokens there are of ``length`` tokens."""

    @abstractmethod
    def shown(self, real: Tensor) -> Tensor | None:
        """Say which projected tokens of each sample hold a real one, (batch or 1, rows).

        ``None`` where each of them holds something of all tokens.
        """

    def reset_parameters(self) -> None:
        """Draw what is learned anew."""


class LinearProjection(LengthProjection):
    """One learned number for each projected token and each place: ``weight @ tokens``.

    Args:
        weight: (rank, max_length) for all heads, or (kv_heads, rank, max_length), to be filled.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.reset_parameters()

    @override
    def reset_parameters(self) -> None:
        # A projected token of a full input is then about as large as a token.
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)

    @override
    def forward(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        length = tokens.shape[2]
        check_places(self.weight.shape[-1], length)
        _check_dtype(self.weight, tokens)
        return project_length(first_columns(self.weight, length).to(tokens.dtype), tokens)

    @override
    def matrix(self, length: int, real: Tensor | None) -> Tensor:
        return self.weight[..., :length]

    @override
    def rows(self, length: int) -> int:
        return self.weight.shape[-2]

    @override
    def shown(self, real: Tensor) -> None:
        return None

    @override
    def extra_repr(self) -> str:
        return "×".join(str(size) for size in self.weight.shape)


class WindowProjection(LengthProjection):
    """What projections by windows share: a short input has fewer windows, the last cut short.

    Args:
        kernel: Tokens in a window.
        max_length: How many tokens may come.
    """

    def __init__(self, kernel: int, max_length: int) -> None:
        super().__init__()
        self.kernel, self.max_length = kernel, max_length

    @override
    def rows(self, length: int) -> int:
        return (length + self.kernel - 1) // self.kernel

    @override
    def shown(self, real: Tensor) -> Tensor:
        return self._windows(real, 1).any(-1)

    @override
    def extra_repr(self) -> str:
        return f"kernel={self.kernel}"

    def _windows(self, numbers: Tensor, axis: int) -> Tensor:
        """Split an axis into windows, the last one filled up with zeros."""
        length = numbers.shape[axis]
        check_places(self.max_length, length)
        rows = self.rows(length)
        missing = rows * self.kernel - length
        if is_compiling() or missing:
            numbers = pad(numbers, (*[0, 0] * (numbers.ndim - axis - 1), 0, missing))
        shape = (*numbers.shape[:axis], rows, self.kernel, *numbers.shape[axis + 1 :])
        return numbers.reshape(shape)

    def _cells(self, length: int, device: torch.device) -> Tensor:
        """Say which places belong to which window, (rows, length)."""
        windows = torch.arange(self.rows(length), device=device).unsqueeze(1)
        return torch.arange(length, device=device) // self.kernel == windows


class ConvProjection(WindowProjection):
    """A strided convolution along the length: each window is summed with one learned kernel.

    All columns of a head share its kernel, so they are not mixed.

    Args:
        weight: (kernel,) for all heads, or (kv_heads, kernel), to be filled.
        max_length: How many tokens may come.
    """

    def __init__(self, weight: Tensor, max_length: int) -> None:
        super().__init__(weight.shape[-1], max_length)
        self.weight = nn.Parameter(weight)
        self.reset_parameters()

    @override
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.kernel**-0.5)

    @override
    def forward(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        _check_dtype(self.weight, tokens)
        work = _work_dtype(tokens)
        each = self.weight.to(work).unsqueeze(-2).unsqueeze(-1)
        return (self._windows(tokens, 2).to(work) * each).sum(-2).to(tokens.dtype)

    @override
    def matrix(self, length: int, real: Tensor | None) -> Tensor:
        repeats = [1] * (self.weight.ndim - 1) + [self.rows(length)]
        spread = self.weight.repeat(repeats)[..., :length].unsqueeze(-2)
        return spread * self._cells(length, spread.device).to(spread.dtype)


class MeanProjection(WindowProjection):
    """The mean of the real tokens of each window; nothing is learned."""

    @override
    def forward(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        work = _work_dtype(tokens)
        count = self._windows(_all_or(real, tokens.shape[2], tokens.device), 1).sum(-1)
        total = self._windows(tokens, 2).sum(-2, dtype=work)
        return (total / count.clamp(min=1).to(work)[:, None, :, None]).to(tokens.dtype)

    @override
    def matrix(self, length: int, real: Tensor | None) -> Tensor:
        real = _all_or(real, length, torch.device("cpu"))
        cells = (self._cells(length, real.device) & real.unsqueeze(1)).unsqueeze(1).double()
        return cells / cells.sum(-1, keepdim=True).clamp(min=1.0)


def _all_or(real: Tensor | None, length: int, device: torch.device) -> Tensor:
    return torch.ones(1, length, dtype=torch.bool, device=device) if real is None else real


def _work_dtype(tokens: Tensor) -> torch.dtype:
    """Return what a window is summed in: half precision is rounded once, behind the sum."""
    return torch.promote_types(tokens.dtype, torch.float32)


def _check_dtype(weight: Tensor, tokens: Tensor) -> None:
    kind = tokens.device.type
    cast = kind != "meta" and torch.is_autocast_enabled(kind)
    if weight.device != tokens.device or (weight.dtype != tokens.dtype and not cast):
        raise refuse_dtypes(
            _CALLER,
            "its projections must have the dtype and device of keys and values",
            "make it with dtype= and device=, or move the layer that it is in, layer.to(…)",
            projection=weight,
            tokens=tokens,
        )

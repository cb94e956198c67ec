"""Learned positions: a trained row for every position, added to the tokens."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from headwise._checks import is_int
from headwise._dims import Hidden
from headwise._forks import alone_after_fork
from headwise.errors import ShapeError
from headwise.positions.offsets import positions, settle
from headwise.positions.sinusoidal import check_tokens
from headwise.positions.tables import keeps_nothing


class Learned(nn.Module):
    """Add a learned row per position to the tokens.

    A token at position ``p`` gets row ``p + offset`` of ``weight``. Positions before 0, which
    padding on the left has, all read the row before that of position 0 (row ``offset - 1``), as the
    padding of OPT and RoBERTa does; without an offset there is none, and they read row 0.

    Args:
        max_length: Positions there are; those past them are refused, never wrapped.
        d_model: Width of the model.
        offset: Rows before that of position 0: 2 in BART, OPT and RoBERTa, 0 in BERT and GPT-2.
        device: Where the weight is made.
        dtype: Its dtype.

    Attributes:
        weight: The rows, (max_length + offset, d_model), drawn from a normal distribution of spread
            0.02. The state dict is that of the embedding of positions in transformers.

    Raises:
        ShapeError: ``max_length`` or ``d_model`` below 1, or a negative offset.

    Example:
        >>> import torch, headwise as hw
        >>> learned = hw.positions.Learned(512, 8)
        >>> x = torch.zeros(2, 3, 8)
        >>> torch.equal(learned(x, offset=5)[1], learned.weight[5:8])
        True
    """

    def __init__(
        self,
        max_length: int,
        d_model: int,
        *,
        offset: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check("max_length", max_length, 1, "give the longest text, in tokens")
        _check("d_model", d_model, 1, "give the width of the model")
        _check("offset", offset, 0, "BART, OPT and RoBERTa have 2, most others 0")
        self.max_length, self.d_model, self.offset = max_length, d_model, offset
        rows = max_length + offset
        self.weight = nn.Parameter(torch.empty(rows, d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew."""
        nn.init.normal_(self.weight, std=0.02)

    @override
    @alone_after_fork
    def forward(self, x: Hidden, offset: int | Tensor = 0) -> Hidden:
        """Add to every token the row of its position.

        Args:
            x: Tokens, (…, length, d_model).
            offset: Position of the first token: an int, or one integer per sample, (batch,).

        Returns:
            The same shape, in the dtype that torch gives the sum of ``x`` and ``weight``.

        Raises:
            ShapeError: A position past ``max_length`` (inside compiled graphs and transforms, where
                it is in a tensor, torch itself refuses the row), another ``d_model``, or another
                number of offsets than samples.
            DtypeError: Anything but floating-point numbers, or offsets that are no integers.
        """
        check_tokens("Learned", x, self.d_model)
        offset = settle("Learned", "offset", offset, x, inner=2)
        length = x.shape[-2]
        self._check_reach(offset, length)
        if isinstance(offset, int) and offset >= 0:
            first = offset + self.offset
            return x + self.weight[first : first + length]
        rows = positions(offset, length, x.device).clamp(min=-1) + self.offset
        found = functional.embedding(rows.clamp(min=0), self.weight)
        return x + (found.view(x.shape) if found.ndim == 3 else found)

    def _check_reach(self, offset: int | Tensor, length: int) -> None:
        if isinstance(offset, Tensor):
            if not offset.numel() or offset.is_meta or keeps_nothing(offset):
                return
            offset = int(offset.max())
        if length and offset + length > self.max_length:
            raise ShapeError(
                f"Learned: positions must be below max_length={self.max_length}, got "
                f"{offset + length - 1}\n"
                "  hint: cut the text, or train with more positions; Rotary and Alibi have no bound"
            )

    @override
    def extra_repr(self) -> str:
        shown = f"{self.max_length}, {self.d_model}"
        return f"{shown}, offset={self.offset}" if self.offset else shown


def _check(name: str, number: int, least: int, hint: str) -> None:
    if not is_int(number) or number < least:
        raise ShapeError(
            f"Learned: {name} must be an int of at least {least}, got {number!r}\n  hint: {hint}"
        )

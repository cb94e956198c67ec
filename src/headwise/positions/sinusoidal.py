"""Fixed positions: sines and cosines of growing wavelength, added to the tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwise._checks import is_int, refuse_dtypes, refuse_shapes
from headwise._dims import Hidden
from headwise._forks import alone_after_fork
from headwise.errors import ShapeError
from headwise.positions.bases import check_base
from headwise.positions.offsets import positions, settle
from headwise.positions.tables import keeps_nothing, table_of


@dataclass(frozen=True)
class _Waves:
    """One sine or cosine for every column."""

    d_model: int
    base: float
    interleaved: bool
    inclusive: bool

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.d_model

    def rows(self, places: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the rows of some positions."""
        half = self.d_model // 2
        sines = half if self.inclusive else self.d_model - half
        step = 1 / (half - 1) if self.inclusive else 2 / self.d_model
        powers = torch.arange(sines, dtype=torch.float64, device=places.device) * step
        angles = places.double()[..., None] * self.base**-powers
        sin, cos = angles.sin(), angles[..., :half].cos()
        if self.inclusive and self.d_model % 2:
            found = torch.cat((sin, cos, torch.zeros_like(sin[..., :1])), -1)
        elif self.interleaved:
            found = torch.stack((sin[..., :half], cos), -1).flatten(-2)
            found = torch.cat((found, sin[..., half:]), -1)
        else:
            found = torch.cat((sin, cos), -1)
        return found.to(dtype)

    def parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the rows."""
        return (rows,)


class Sinusoidal(nn.Module):
    """Add a fixed wave per column to the tokens, fast ones first.

    Column ``2 * k`` of a token at position ``p`` gets ``sin(p / base ** (2 * k / d_model))`` and
    column ``2 * k + 1`` the cosine of the same ("Attention Is All You Need", Vaswani et al., 2017).
    Models of transformers lay the columns out in other ways:

    ===============================  ====================================================
    Marian, Pegasus                  ``interleaved=False``
    Whisper's encoder                ``interleaved=False, inclusive=True``
    M2M-100, XGLM (fairseq)          ``interleaved=False, inclusive=True, offset=2``
    ===============================  ====================================================

    There is no state: nothing stands in the state dict. Waves are computed in float64; float16 and
    bfloat16 are added to in float32 and rounded once. Many models multiply their embeddings by
    ``d_model ** 0.5`` before; that is not done here.

    Args:
        d_model: Width of the model. An odd one ends in a sine.
        base: What the wavelengths grow to, over 2π.
        interleaved: Sines and cosines in turns; without, the sines first.
        inclusive: The longest wavelength is ``2π * base`` itself, not one step less: exponents are
            ``k / (d_model // 2 - 1)``. Not with ``interleaved``; an odd ``d_model`` ends in a zero.
        offset: Added to every position.

    Raises:
        ShapeError: A ``d_model`` below 1, or below 4 with ``inclusive``; an offset that is no int.
        ValueError: A base that is not above 1 and finite, or ``inclusive`` with ``interleaved``.

    Example:
        >>> import torch, headwise as hw
        >>> hw.positions.Sinusoidal(4)(torch.zeros(2, 4))
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    def __init__(
        self,
        d_model: int,
        base: float = 10000.0,
        *,
        interleaved: bool = True,
        inclusive: bool = False,
        offset: int = 0,
    ) -> None:
        super().__init__()
        least = 4 if inclusive else 1
        if not is_int(d_model) or d_model < least:
            raise ShapeError(
                f"Sinusoidal: d_model must be an int of at least {least}, got {d_model!r}\n"
                "  hint: give the width of the model"
            )
        if interleaved and inclusive:
            raise ValueError(
                "Sinusoidal: inclusive is a form of sines before cosines, got interleaved=True\n"
                "  hint: pass interleaved=False, as Whisper and fairseq lay them out"
            )
        if not is_int(offset):
            raise ShapeError(
                f"Sinusoidal: offset must be an int, got {offset!r}\n"
                "  hint: it is added to every position; fairseq's models have 2"
            )
        self.d_model, self.offset = d_model, offset
        self.base = check_base("Sinusoidal", base, "it is 10000.0 in the paper")
        self.interleaved, self.inclusive = interleaved, inclusive
        self._table = table_of(_Waves(d_model, self.base, interleaved, inclusive))

    @override
    @alone_after_fork
    def forward(self, x: Hidden, offset: int | Tensor = 0) -> Hidden:
        """Add to every token the wave of its position.

        Args:
            x: Tokens, (…, length, d_model).
            offset: Position of the first token: an int, or one integer per sample, (batch,). It may
                be negative.

        Returns:
            The same shape and dtype.

        Raises:
            ShapeError: Another ``d_model``, or another number of offsets than samples.
            DtypeError: Anything but floating-point numbers, or offsets that are no integers.
        """
        check_tokens("Sinusoidal", x, self.d_model)
        offset = settle("Sinusoidal", "offset", offset, x, inner=2) + self.offset
        work, length = torch.promote_types(x.dtype, torch.float32), x.shape[-2]
        if x.is_meta or keeps_nothing(offset):
            rows = self._table.formula.rows(positions(offset, length, x.device), work)
        else:
            (rows,) = self._table.parts(offset, length, x.device, work)
        if rows.ndim == 3:
            rows = rows.view(x.shape)
        return (x + rows).to(x.dtype)

    @override
    def extra_repr(self) -> str:
        shown = [f"{self.d_model}"]
        if self.base != 10000.0:
            shown.append(f"base={self.base!r}")
        if not self.interleaved:
            shown.append("interleaved=False")
        if self.inclusive:
            shown.append("inclusive=True")
        if self.offset:
            shown.append(f"offset={self.offset}")
        return ", ".join(shown)


def check_tokens(caller: str, x: Tensor, d_model: int) -> None:
    """Refuse what is no (…, length, d_model) of floating-point numbers."""
    if not x.is_floating_point():
        raise refuse_dtypes(caller, "x must be floating-point", "embed the tokens before", x=x)
    if x.ndim < 2 or x.shape[-1] != d_model:
        raise refuse_shapes(
            caller,
            f"x must be (…, length, d_model) with a d_model of {d_model}",
            "positions are added before the heads are split",
            x=x,
        )

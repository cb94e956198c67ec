"""Cosine and sine of the angles of positions, laid out as they are worked with."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Turns:
    """The row of a position: cosine and sine for every pair of columns.

    Neighbouring pairs are stored as complex numbers. For pairs half the width apart, a row holds
    the cosine of every column, 1 for the ``left`` ones that do not turn, and then the sine of
    every column that does, negated in the first half of them.
    """

    frequencies: tuple[float, ...]
    factor: float
    left: int
    interleaved: bool

    @property
    def width(self) -> int:
        """Numbers in a row."""
        turning = 2 * len(self.frequencies)
        return turning if self.interleaved else 2 * turning + self.left

    def rows(self, places: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the rows of some positions."""
        steps = torch.tensor(self.frequencies, dtype=torch.float64, device=places.device)
        cos, sin = cos_and_sin(places, steps, self.factor, dtype)
        if self.interleaved:
            return torch.stack((cos, sin), -1).flatten(-2)
        ones = cos.new_ones((*cos.shape[:-1], self.left))
        return torch.cat((cos, cos, ones, -sin, sin), -1)

    def parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the turns as complex numbers, or cosine and sine of every column."""
        pairs = len(self.frequencies)
        if self.interleaved:
            return (torch.view_as_complex(rows.view(*rows.shape[:-1], pairs, 2)),)
        columns = 2 * pairs + self.left
        return rows[..., :columns], rows[..., columns:]


def cos_and_sin(
    places: Tensor, steps: Tensor, factor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return ``factor`` times cosine and sine of positions times steps, rounded once."""
    angles = places.double()[..., None] * steps
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)

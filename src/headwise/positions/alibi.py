"""Attention with linear biases: a fixed penalty per head that grows with the distance."""

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwise._checks import is_int
from headwise.errors import ShapeError


class Alibi(nn.Module):
    """Lower the score of a pair by its distance, times a slope of the query head.

    Head ``h`` adds ``-slopes[h] * |i - j|`` for a query at position ``i`` and a key at position
    ``j`` ("Train Short, Test Long", Press et al., 2022). The distance counts in both directions,
    of which the causal form is the part that ``headwise.Causal()`` leaves. Pass the object as
    ``bias=``; it is never spelled out to (q_len, kv_len) by the compiled kernels.

    The slopes are constants and no state: they take no gradient, stand in no state dict, and stay
    float32 whatever dtype or device the model around them is moved to.

    Args:
        num_heads: Query heads.
        slopes: One finite number per head; ``None`` = the paper's: ``2 ** (-8 * k / num_heads)``
            for the heads ``k = 1, 2, …`` where their number is a power of two. Other numbers take
            those of the power below, then every second one of the power above.

    Raises:
        ShapeError: Fewer than one head, or another number of slopes than heads.
        ValueError: A slope that is not finite, or one that wants a gradient.

    Example:
        >>> import torch, headwise as hw
        >>> x = torch.ones(1, 2, 3, 4)
        >>> hw.attention_weights(x, x, hw.Causal(), bias=hw.positions.Alibi(2), rows=2)[0, 0, 0]
        tensor([0.3127, 0.3329, 0.3544])
    """

    def __init__(self, num_heads: int, slopes: Sequence[float] | Tensor | None = None) -> None:
        super().__init__()
        if not is_int(num_heads) or num_heads < 1:
            raise ShapeError(
                f"Alibi: num_heads must be an int of at least 1, got {num_heads!r}\n"
                "  hint: give the number of query heads"
            )
        self.num_heads = num_heads
        self._slopes = _usual(num_heads) if slopes is None else _given(num_heads, slopes)

    @property
    def slopes(self) -> Tensor:
        """The slope of each head, (num_heads,) in float32 on the CPU."""
        return torch.tensor(self._slopes, dtype=torch.float32, device="cpu")

    @override
    def extra_repr(self) -> str:
        usual = self._slopes == _usual(self.num_heads)
        return f"{self.num_heads}" if usual else f"{self.num_heads}, slopes={list(self._slopes)}"


def _usual(num_heads: int) -> tuple[float, ...]:
    power = 1 << (num_heads.bit_length() - 1)
    below = [2.0 ** (-8 * k / power) for k in range(1, power + 1)]
    between = [2.0 ** (-4 * k / power) for k in range(1, 2 * (num_heads - power), 2)]
    return (*below, *between)


def _given(num_heads: int, slopes: Sequence[float] | Tensor) -> tuple[float, ...]:
    if isinstance(slopes, Tensor):
        if slopes.requires_grad:
            raise ValueError(
                "Alibi: slopes must be constants, got a tensor that wants a gradient\n"
                "  hint: pass slopes.detach(); RelativeBias is a bias that is learned"
            )
        shape = tuple(slopes.shape)
        numbers = slopes.flatten().tolist()
    else:
        numbers = [float(slope) for slope in slopes]
        shape = (len(numbers),)
    if shape != (num_heads,):
        raise ShapeError(
            f"Alibi: slopes must have the shape ({num_heads},), got {shape}\n"
            "  hint: give one slope per query head, or leave them out for the usual ones"
        )
    wrong = [slope for slope in numbers if not -inf < slope < inf]
    if wrong:
        raise ValueError(
            f"Alibi: slopes must be finite, got {wrong[0]}\n"
            "  hint: a head without a bias has the slope 0.0; to close pairs, use a pattern"
        )
    return tuple(numbers)

"""Turns pairs of columns by an angle: the definition, and what takes fewest passes over memory."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

# Elements from which on writing in place beats one more temporary tensor.
_MANY = 1 << 15


def spelled(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Turn the first ``2 * cos.shape[-1]`` columns; the definition, in plain operations.

    A pair ``(a, b)`` becomes ``(a * cos - b * sin, b * cos + a * sin)``. ``x`` is converted to the
    dtype of ``cos``, and the result rounded back once.
    """
    width = 2 * cos.shape[-1]
    whole = x.shape[-1] == width
    turning = (x if whole else x[..., :width]).to(cos.dtype)
    if interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = turning[..., : width // 2], turning[..., width // 2 :]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    turned = turned.to(x.dtype)
    return turned if whole else torch.cat((turned, x[..., width:]), -1)


def turn_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn column ``c`` with ``c + half``.

    Args:
        x: What is turned, (..., dim).
        cos: The cosine for every column of ``x``, 1 where a column is left as it is.
        sin: For the columns that turn: ``-sin`` for the first half of them, then ``sin``.
    """
    wide = x if x.dtype == cos.dtype else x.to(cos.dtype)
    if x.numel() < _MANY:
        turned = _few(wide, cos, sin)
    elif x.requires_grad and torch.is_grad_enabled():
        turned = _Turn.apply(wide, cos, sin, 1)  # type: ignore[no-untyped-call]
    else:
        turned = _many(wide, cos, sin, 1)
    return turned if x.dtype == cos.dtype else turned.to(x.dtype)


def turn_pairs(x: Tensor, turns: Tensor) -> Tensor:
    """Turn neighbouring columns, as complex numbers times ``turns`` (half as many)."""
    pairs = turns.shape[-1]
    whole = x.shape[-1] == 2 * pairs
    turning = x if whole else x[..., : 2 * pairs]
    numbers = turns.real.dtype
    if x.dtype != numbers:
        turning = turning.to(numbers)
    *strides, last = turning.stride()
    if last != 1 or turning.storage_offset() % 2 or any(stride % 2 for stride in strides):
        turning = turning.clone(memory_format=torch.contiguous_format)
    points = torch.view_as_complex(turning.view(*turning.shape[:-1], pairs, 2))
    turned = torch.view_as_real(points * turns).flatten(-2)
    if x.dtype != numbers:
        turned = turned.to(x.dtype)
    return turned if whole else torch.cat((turned, x[..., 2 * pairs :]), -1)


def _few(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = sin.shape[-1]
    if width == x.shape[-1]:
        return torch.addcmul(x * cos, x.roll(width // 2, -1), sin)
    turning = x[..., :width]
    turned = torch.addcmul(turning * cos[..., :width], turning.roll(width // 2, -1), sin)
    return torch.cat((turned, x[..., width:]), -1)


def _many(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    half = sin.shape[-1] // 2
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half : 2 * half], sin[..., :half], value=sign)
    turned[..., half : 2 * half].addcmul_(x[..., :half], sin[..., half:], value=sign)
    return turned


class _Turn(torch.autograd.Function):
    """``_many`` with a gradient: the same turn backwards."""

    @staticmethod
    @override
    def forward(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
        return _many(x, cos, sin, sign)

    @staticmethod
    @override
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, cos, sin, ctx.sign = inputs
        ctx.save_for_backward(cos, sin)

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        (gradient,) = gradients
        if torch._C._functorch.is_legacy_batchedtensor(gradient):
            half = sin.shape[-1] // 2
            turned = spelled(gradient, cos[..., :half], ctx.sign * sin[..., :half], False)
            return turned, None, None, None
        turned = _Turn.apply(gradient, cos, sin, -ctx.sign)  # type: ignore[no-untyped-call]
        return turned, None, None, None

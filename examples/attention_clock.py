"""Measures how long attention takes inside a training step, forward and backward."""

import time
from collections.abc import Callable
from typing import Any

import torch
from decoder import Attention
from torch import Tensor


class AttentionClock:
    """Adds up the seconds spent in an attention, whatever operations it is made of.

    Forward, the clock runs around the call. Backward, autograd runs a graph, so two operations that
    do nothing are put into it: one behind the output, one before query, key and value. Backward
    passes the first, then what attention recorded, then the second, which waits for all three
    gradients: the time from one to the other is that of attention's backward. Between them nothing
    else is ready to run, for everything else waits for what comes out of the second.

    Args:
        now: Tells the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.reset()

    def reset(self) -> None:
        """Forget what was measured."""
        self.forward = 0.0
        self.backward = 0.0
        self._started = 0.0

    def around(self, attention: Attention) -> Attention:
        """Return ``attention`` with the clock around it."""

        def measured(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = _passing(self._backward_ends, query, key, value)
            started = self.now()
            output = attention(query, key, value)
            self.forward += self.now() - started
            return _passing(self._backward_starts, output)[0]

        return measured

    def _backward_starts(self) -> None:
        self._started = self.now()

    def _backward_ends(self) -> None:
        self.backward += self.now() - self._started


def _passing(passed: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return ``tensors``; ``passed`` is called when their gradients come by."""
    same: tuple[Tensor, ...] = _Passing.apply(passed, *tensors)  # type: ignore[no-untyped-call]
    return same


class _Passing(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        passed: Callable[[], None],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.passed = passed
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        ctx.passed()
        return (None, *gradients)

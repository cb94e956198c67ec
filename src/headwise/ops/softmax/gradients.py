"""Which gradients of one attention call are computed together, and that they have none."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headwise.errors import BackendRefused

# Arguments of a call by their number.
_QKV, _BIAS, _TABLE, _SINKS = slice(0, 3), 3, 5, 6
_COUNT = 8


def of_inputs(
    needed: Sequence[bool],
    d_output: Tensor | None,
    d_lse: Tensor | None,
    output: Tensor,
    run: Callable[[bool, Tensor], Sequence[Tensor]],
) -> list[Tensor | None]:
    """Return the gradients of query, key, value, bias, slopes, table, sinks and seed.

    Args:
        needed: Which of them are wanted.
        d_output: Gradient of the output, where there is one.
        d_lse: Gradient of the log-sum-exp, where there is one.
        output: The output of the call.
        run: Computes gradients from that of the output: of query, key, value and sinks, or, told
            ``True``, of the bias or table alone.
    """
    found: list[Tensor | None] = [None] * _COUNT
    if d_output is None:
        if d_lse is None:
            return found
        d_output = torch.zeros_like(output)
    if any(needed[_QKV]) or needed[_SINKS]:
        found[0], found[1], found[2], d_sinks = run(False, d_output)
        found[_SINKS] = d_sinks if needed[_SINKS] else None
    if needed[_BIAS] or needed[_TABLE]:
        (found[_BIAS if needed[_BIAS] else _TABLE],) = run(True, d_output)
    return found


def refuse_second() -> BackendRefused:
    """Word the refusal of a derivative of a derivative."""
    return BackendRefused(
        "attend: the native backend has no second derivatives, and one is wanted\n"
        '  hint: pass backend="reference" to the call that is derived twice'
    )


def refuse_batched() -> BackendRefused:
    """Word the refusal of several gradients at once."""
    return BackendRefused(
        "attend: the native backend takes one gradient at a time, and a batch of them is given\n"
        "  hint: use torch.func.vjp with torch.vmap in place of is_grads_batched=True, and "
        "torch.func.jacrev in place of vectorize=True"
    )

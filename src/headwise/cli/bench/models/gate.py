"""No number without a right answer: what a model must pass, in every form, before it is timed."""

import torch
from torch import Tensor

from headwise.cli.failures import Unable

# Against the error of the model as it was. Other runtimes are held to it four times as loosely:
# the check is there to see that they compute the same thing.
_SLACK, _SLACK_OF_PEERS = 4.0, 16.0


def check(name: str, found: Tensor, plain: Tensor, exact: Tensor, *, peer: bool = False) -> float:
    """Return the largest error of an answer.

    Args:
        name: Whose it is.
        found: The answer.
        plain: That of the model as it was.
        exact: That of the same weights in float64.
        peer: Whether another runtime gave it.

    Raises:
        Unable: The answer is wrong.
    """
    if not plain.isfinite().all():
        raise Unable("the model as it was answers NaN or infinity; there is nothing to compare")
    slack = _SLACK_OF_PEERS if peer else _SLACK
    step = torch.finfo(plain.dtype).eps * exact.abs().max().item()
    error = worst(found, exact)
    allowed = slack * max(worst(plain, exact), step)
    if not error <= allowed:
        raise Unable(f"{name}: the answer is wrong by {error:.3e}, where {allowed:.3e} is allowed")
    return error


def worst(found: Tensor, exact: Tensor) -> float:
    """Return the largest difference."""
    return (found.double() - exact).abs().max().item()

"""No number without a right answer: the check that every contender passes before it is timed."""

import torch
from torch import Tensor

from headwise.cli.bench.contenders import Inputs, formula
from headwise.cli.failures import Unable

_SLACK = 2.0
_FLOOR_STEPS = 4.0


def check(case_name: str, given: Inputs, outputs: dict[str, Tensor]) -> dict[str, float]:
    """Compare outputs with the float64 answer and return the largest error of each.

    Each may be at most twice as wrong as the formula in the case's own element type, or as four
    rounding steps where the formula is luckily exact.

    Raises:
        Unable: An output is wrong.
    """
    exact = _exact(given)
    errors = {name: _worst(output, exact) for name, output in outputs.items()}
    step = torch.finfo(given.query.dtype).eps * max(1.0, exact.abs().max().item())
    allowed = _SLACK * max(errors["formula"], _FLOOR_STEPS * step)
    for name, error in errors.items():
        if not error <= allowed:
            raise Unable(
                f"{case_name}: {name} is wrong by {error:.3e}, where {allowed:.3e} is allowed; "
                "it was not measured"
            )
    return errors


def _exact(given: Inputs) -> Tensor:
    """Return the float64 answer, head by head: the scores of all heads would not fit."""
    heads = given.query.shape[1]
    group = heads // given.key.shape[1]
    parts = []
    for head in range(heads):
        kv_head = slice(head // group, head // group + 1)
        key, value = given.key[:, kv_head].double(), given.value[:, kv_head].double()
        parts.append(formula(given.query[:, head : head + 1].double(), key, value, given.mask))
    return torch.cat(parts, 1)


def _worst(output: Tensor, exact: Tensor) -> float:
    return (output.double() - exact).abs().max().item()

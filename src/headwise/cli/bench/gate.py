"""No number without a right answer: the check that every contender passes before it is timed."""

import torch
from torch import Tensor

from headwise.cli.bench.contenders import ANSWERS, Answers, Inputs, answers, formula
from headwise.cli.failures import Unable

# Torch's own gradients were seen 2.1 times as wrong as the formula's: the check of a peer is there
# to see that it computes the same thing, not to hold it to our promise.
_SLACK, _SLACK_OF_PEERS = 2.0, 4.0
_FLOOR_STEPS = 4.0


def check(case_name: str, given: Inputs, found: dict[str, Answers]) -> dict[str, dict[str, float]]:
    """Compare outputs and gradients with those in float64; return the largest error of each.

    headwise may be at most twice as wrong as the formula in the case's own element type, or as four
    rounding steps where the formula is luckily exact; its peers twice as much again.

    Args:
        case_name: What to call the case in a message.
        given: The case's tensors.
        found: The answers of each contender, by its name.

    Returns:
        By contender, then by answer.

    Raises:
        Unable: An answer is wrong.
    """
    exact = _piecewise(given, torch.float64)
    plain = _piecewise(given, given.query.dtype)
    errors = {
        name: dict(zip(ANSWERS, map(_worst, ours, exact), strict=False))
        for name, ours in found.items()
    }
    for answer, right, usual in zip(ANSWERS, exact, plain, strict=False):
        step = torch.finfo(usual.dtype).eps * max(1.0, right.abs().max().item())
        for name in found:
            slack = _SLACK if name == "headwise" else _SLACK_OF_PEERS
            allowed = slack * max(_worst(usual, right), _FLOOR_STEPS * step)
            error = errors[name][answer]
            if not error <= allowed:
                raise Unable(
                    f"{case_name}: {answer} of {name} is wrong by {error:.3e}, where "
                    f"{allowed:.3e} is allowed; it was not measured"
                )
    return errors


def _piecewise(given: Inputs, dtype: torch.dtype) -> Answers:
    """Return the formula's answers, head by head: the scores of all heads would not fit."""
    wanted = (given.query, given.query, given.key, given.value)[: _count(given)]
    whole = tuple(torch.empty(like.shape, dtype=dtype) for like in wanted)
    samples, kv_heads = given.key.shape[:2]
    group = given.query.shape[1] // kv_heads
    for sample in range(samples):
        for kv_head in range(kv_heads):
            piece = _piece(given, sample, kv_head, dtype)
            parts = answers(lambda q, k, v: formula(q, k, v, given.mask), piece)
            for all_heads, part in zip(whole, parts, strict=True):
                width = group if all_heads.shape[1] == given.query.shape[1] else 1
                heads = slice(kv_head * width, (kv_head + 1) * width)
                all_heads[sample, heads] = part[0].detach()
    return whole


def _piece(given: Inputs, sample: int, kv_head: int, dtype: torch.dtype) -> Inputs:
    """Return one key/value head of one sample, with the query heads that read it."""

    def cut(tensor: Tensor) -> Tensor:
        width = tensor.shape[1] // given.key.shape[1]
        heads = slice(kv_head * width, (kv_head + 1) * width)
        part = tensor.detach()[sample : sample + 1, heads].to(dtype)
        return part.requires_grad_(tensor.requires_grad)

    d_output = None if given.d_output is None else cut(given.d_output)
    return Inputs(cut(given.query), cut(given.key), cut(given.value), given.mask, d_output)


def _count(given: Inputs) -> int:
    return 1 if given.d_output is None else len(ANSWERS)


def _worst(found: Tensor, exact: Tensor) -> float:
    return (found.detach().double() - exact).abs().max().item()

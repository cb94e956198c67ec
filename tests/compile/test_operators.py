"""The operators keep what their schemas and fakes promise."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.patterns import Causal, KeyMask, Lengths
from headwise.patterns.spelling import spell
from tests.compile.patterns_of_calls import SIZES
from tests.support.shapes import inputs

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
HEADS = SIZES.heads
NUMBERS = [KeyMask(torch.rand(2, 7) < 0.7) & Causal(), Lengths([3, 6]), None]


def bias() -> dict[str, Tensor]:
    return {"bias": torch.randn(1, HEADS, 7, 1)}


ADDED: dict[str, dict[str, Tensor]] = {
    "nothing": {},
    "bias": bias(),
    "sinks": {"sinks": torch.randn(HEADS)},
    "slopes": {"slopes": torch.rand(HEADS)},
    "table and dropout": {
        "table": torch.randn(HEADS, 13),
        "seed": torch.tensor([5]),
    },
}


def arguments(added: str, dtype: torch.dtype, inside: bool) -> list[Any]:
    """Return the arguments of ``attend``, of a kind that differs with what is added."""
    given = inputs(SIZES, dtype=dtype)
    if inside:
        given = type(given)(*(t.transpose(1, 2).contiguous().transpose(1, 2) for t in given))
    pattern = NUMBERS[list(ADDED).index(added) % len(NUMBERS)]
    text, numbers, tensors = ("", [], []) if pattern is None else spell(pattern)
    names = ("bias", "slopes", "table", "sinks", "seed")
    share = 0.5 if "seed" in ADDED[added] else 0.0
    return [
        *given,
        *(ADDED[added].get(name) for name in names),
        *(tensors, None if pattern is None else text, numbers),
        *([0], [0], -6, 0.3, 2.0, share),
    ]


def both_ways(call: list[Any]) -> list[Any]:
    """Return the arguments of the gradients of a call."""
    output, lse = torch.ops.headwise.attend(*call)
    upstream = [torch.randn_like(output), torch.randn_like(lse)]
    return [*upstream, *call[:3], output, lse, *call[3:]]


@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize(("dtype", "inside"), [(torch.float32, False), (torch.bfloat16, True)])
def test_operators_keep_their_promises(added: str, dtype: torch.dtype, inside: bool) -> None:
    call = arguments(added, dtype, inside)
    torch.library.opcheck(torch.ops.headwise.attend.default, tuple(call))
    gradients = tuple(both_ways(call))
    torch.library.opcheck(torch.ops.headwise.attend_backward.default, gradients)
    if "bias" in ADDED[added] or "table" in ADDED[added]:
        torch.library.opcheck(torch.ops.headwise.attend_bias_backward.default, gradients)


@pytest.mark.parametrize("added", ADDED)
def test_operators_derive_what_they_promise(added: str) -> None:
    call = arguments(added, torch.float32, inside=False)
    learned = [part.requires_grad_() if part is not None else part for part in call[:3]]
    learned += [
        part.clone().requires_grad_() if index in (0, 2, 3) and part is not None else part
        for index, part in enumerate(call[3:8])
    ]
    torch.library.opcheck(torch.ops.headwise.attend.default, (*learned, *call[8:]))

"""Longformer's layer against transformers' and against every score written down."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_within_budget
from tests.support.longformer import (
    PROJECTIONS,
    WIDTH,
    neighbours,
    spelled,
    their_context,
    tiny_longformer,
    with_weights_of,
)
from tests.support.paths import Path, on_layers


class Case(NamedTuple):
    """Tokens and their kinds; each sample lists its global tokens and its padding."""

    length: int
    window: int
    chosen: list[list[int]]
    padding: list[list[int]] = [[]]  # noqa: RUF012

    def flags(self, which: list[list[int]]) -> Tensor:
        found = torch.zeros(len(self.chosen), self.length, dtype=torch.bool)
        for sample, tokens in enumerate(which * (1 if which != [[]] else len(self.chosen))):
            found[sample, tokens] = True
        return found


CASES = {
    "a multiple of the window": Case(18, 6, [[0], [0]]),
    "no multiple": Case(19, 6, [[0, 7], [3, 18]]),
    "shorter than the window": Case(5, 14, [[1], [2, 4]]),
    "one token": Case(1, 4, [[], [0]]),
    "one more than the window": Case(7, 6, [[], [6]]),
    "nobody global": Case(17, 4, [[], []], [[], [15, 16]]),
    "different numbers": Case(23, 6, [[0, 1, 11], [], [22]]),
    "different numbers and padding": Case(
        23, 6, [[0, 1, 11], [], [2]], [[20, 21, 22], [], list(range(9, 23))]
    ),
    "padding in front and inside": Case(23, 4, [[9], [5, 6]], [[0, 1, 2, 3], [10, 11, 20]]),
    "padding marked global": Case(13, 4, [[0, 11, 12], [12]], [[11, 12], [12]]),
    "everybody global": Case(11, 4, [list(range(11)), [0]]),
    "a sample of padding": Case(9, 4, [[0], [0]], [[], list(range(9))]),
}


def derived(
    run: Callable[[Tensor], Tensor], x: Tensor, layer: hw.nn.LongformerAttention | None = None
) -> dict[str, Tensor]:
    """Return the output and the gradients of the input and of each projection.

    Those of a weight and its bias stand in one tensor: what a bias of keys learns cancels out.
    """
    learned = [] if layer is None else list(layer.parameters())
    x = x.detach().clone().requires_grad_()
    output = run(x)
    upstream = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
    d_x, *found = torch.autograd.grad(
        output, [x, *learned], upstream.to(output.dtype), allow_unused=True, materialize_grads=True
    )
    names = PROJECTIONS if learned else ()
    joined = {
        name: torch.cat([weight, bias.unsqueeze(1)], 1)
        for name, weight, bias in zip(names, found[::2], found[1::2], strict=True)
    }
    return {"output": output.detach(), "x": d_x, **joined}


@on_layers
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_outputs_and_gradients_are_those_of_transformers(path: Path, case: Case) -> None:
    attention = tiny_longformer(case.window).encoder.layer[0].attention
    layer = with_weights_of(attention, case.window)
    chosen, real = case.flags(case.chosen), ~case.flags(case.padding)
    near = neighbours(case.length, [case.window])
    x = torch.randn(len(chosen), case.length, WIDTH)

    with path.taken():
        ours = derived(partial(layer, global_tokens=chosen, kv_mask=real), x, layer)
    dense = partial(spelled, layer, near=near, chosen=chosen & real, real=real)
    exact, plain = derived(dense, x.double(), layer), derived(dense, x, layer)
    for name, mine in ours.items():
        assert_within_budget(mine, exact=exact[name], plain=plain[name], label=name)
    window = case.window
    run = partial(their_context, attention, chosen=chosen, real=real, window=window)
    for name, theirs in derived(run, x).items():
        assert_within_budget(theirs, exact=exact[name], plain=plain[name], label=f"their {name}")


def test_float64_is_that_of_the_scores_written_down() -> None:
    case = CASES["different numbers and padding"]
    layer = with_weights_of(tiny_longformer(case.window).encoder.layer[0].attention, case.window)
    chosen, real = case.flags(case.chosen), ~case.flags(case.padding)
    x = torch.randn(len(chosen), case.length, WIDTH, dtype=torch.float64)
    near = neighbours(case.length, [case.window])
    layer = layer.double()
    exact = derived(partial(spelled, layer, near=near, chosen=chosen, real=real), x, layer)
    ours = derived(partial(layer, global_tokens=chosen, kv_mask=real), x, layer)
    for name, mine in ours.items():
        torch.testing.assert_close(mine, exact[name])

"""No number for a mechanism that does not compute its own definition."""

from collections.abc import Iterable

import torch
from torch import Tensor

from headwise.cli.bench.contenders import ANSWERS
from headwise.cli.bench.mechanisms.contenders import Contender
from headwise.cli.bench.mechanisms.states import Shape, States, random_states, wanting_gradients
from headwise.cli.failures import Unable

# More than the 2 of attention: gradients of exponentials as large as those of random features were
# seen at 2.3 times the error of their definition. It is to see that the same is computed.
_SLACK, _FLOOR_STEPS = 4.0, 4.0
# Definitions are quadratic. No power of two, and the same whatever lengths are asked for.
_TOKENS = 509


def check(contenders: Iterable[Contender], shape: Shape, *, causal: bool) -> None:
    """Compare output and gradients with the definition of each mechanism in float64.

    On some hundred tokens of random states.

    Args:
        contenders: Those that have such a form are checked.
        shape: Heads and their width.
        causal: Whether later tokens are hidden.

    Raises:
        Unable: An answer is wrong.
    """
    states = random_states(shape, _TOKENS)
    for contender in contenders:
        if contender.takes(causal):
            _check_one(contender, states, causal)


def _check_one(contender: Contender, states: States, causal: bool) -> None:
    made = contender.ready(states.shape, _TOKENS, causal)
    given = wanting_gradients(states)
    doubled = wanting_gradients(states.to(torch.float64))
    found, plain = made.training(given), made.by_definition(given)
    exact = made.double().by_definition(doubled)
    names = (*ANSWERS, *(f"d_{name}" for name, _ in made.mechanism.named_parameters()))
    for name, ours, usual, right in zip(names, found, plain, exact, strict=True):
        step = torch.finfo(usual.dtype).eps * max(1.0, right.abs().max().item())
        allowed = _SLACK * max(_worst(usual, right), _FLOOR_STEPS * step)
        error = _worst(ours, right)
        if not error <= allowed:
            raise Unable(
                f"{contender.name}: {name} is wrong by {error:.3e}, where {allowed:.3e} is "
                "allowed; nothing was measured"
            )


def _worst(found: Tensor, exact: Tensor) -> float:
    return (found.detach().double() - exact.detach()).abs().max().item()

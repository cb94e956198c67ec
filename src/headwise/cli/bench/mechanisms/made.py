"""A mechanism that is ready for a number of tokens, and what is asked of it."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.cli.bench.mechanisms.states import Inputs, States
from headwise.nn import AttentionCall
from headwise.patterns import Pattern


@dataclass(frozen=True)
class Made:
    """An object with ``forward`` and ``reference`` of ``headwise.nn.Mechanism``, and a pattern."""

    mechanism: Any
    pattern: Pattern | None

    def double(self) -> "Made":
        """Return the same in float64."""
        return Made(copy.deepcopy(self.mechanism).double(), self.pattern)

    def forward(self, states: States) -> Tensor:
        """Return the output, without gradients."""
        with torch.no_grad():
            output: Tensor = self.mechanism.forward(self._call(states)).output
        return output

    def training(self, given: Inputs) -> tuple[Tensor, ...]:
        """Return output and gradients of query, key, value and what the mechanism learns."""
        return self._with_gradients(self.mechanism.forward(self._call(given)).output, given)

    def by_definition(self, given: Inputs) -> tuple[Tensor, ...]:
        """Return the same by the definition of the mechanism, however slow."""
        return self._with_gradients(self.mechanism.reference(self._call(given)), given)

    def _call(self, given: States | Inputs) -> AttentionCall:
        return AttentionCall(given.query, given.key, given.value, self.pattern)

    def _with_gradients(self, output: Tensor, given: Inputs) -> tuple[Tensor, ...]:
        wanted = (given.query, given.key, given.value, *self.mechanism.parameters())
        return (output, *torch.autograd.grad(output, wanted, given.d_output))

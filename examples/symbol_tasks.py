"""Two tasks that need what was read before: copying symbols, and recalling values by their keys.

A batch is (samples, length) symbols. ``asked`` are the places in a sample whose symbol the model
shall write, and no other place says anything about what it has learned. Symbol 0 starts a sample.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Task(Protocol):
    """What a training needs of a task."""

    @property
    def vocabulary(self) -> int:
        """Symbols there are."""

    @property
    def asked(self) -> Tensor:
        """Places whose symbol is asked for, in order."""

    def batch(self, samples: int, generator: torch.Generator) -> Tensor:
        """Draw samples, (samples, length)."""


@dataclass(frozen=True)
class Copy:
    """Symbols, a separator, and the same symbols again (Katharopoulos et al., 2020).

    Args:
        items: Symbols to copy.
        symbols: Different ones.
    """

    items: int = 16
    symbols: int = 10

    @property
    def vocabulary(self) -> int:
        """Start and separator are one symbol."""
        return 1 + self.symbols

    @property
    def asked(self) -> Tensor:
        """All that stands behind the separator."""
        return torch.arange(self.items) + self.items + 2

    def batch(self, samples: int, generator: torch.Generator) -> Tensor:
        """Draw samples, (samples, 2 + 2 * items)."""
        drawn = torch.randint(self.symbols, (samples, self.items), generator=generator) + 1
        zero = torch.zeros(samples, 1, dtype=torch.long)
        return torch.cat([zero, drawn, zero, drawn], 1)


@dataclass(frozen=True)
class Recall:
    """Keys, each with its value behind it, then all keys again in another order.

    The value behind a key that comes again is what is asked: multi-query associative recall (Arora
    et al., 2023). Keys, values and both orders are drawn anew for every sample.

    Args:
        items: Pairs to remember.
        keys: Different keys, at least as many.
        values: Different values.
    """

    items: int = 16
    keys: int = 32
    values: int = 8

    @property
    def vocabulary(self) -> int:
        """The start, then keys, then values."""
        return 1 + self.keys + self.values

    @property
    def asked(self) -> Tensor:
        """What stands behind a key that comes again."""
        return 2 * (torch.arange(self.items) + self.items + 1)

    def batch(self, samples: int, generator: torch.Generator) -> Tensor:
        """Draw samples, (samples, 1 + 4 * items)."""
        key = 1 + torch.rand(samples, self.keys, generator=generator).argsort(1)[:, : self.items]
        value = torch.randint(self.values, key.shape, generator=generator) + 1 + self.keys
        pairs = torch.stack([key, value], 2)
        order = torch.rand(samples, self.items, generator=generator).argsort(1)
        again = pairs.gather(1, order.unsqueeze(2).expand_as(pairs))
        zero = torch.zeros(samples, 1, dtype=torch.long)
        return torch.cat([zero, pairs.flatten(1), again.flatten(1)], 1)

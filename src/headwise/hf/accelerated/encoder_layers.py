"""Finds the layers that models stack, and says of each why padding goes through it."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from headwise.hf.accelerated.token_wise import refusal
from headwise.hf.families import attends_itself, named_attention, uses_interface
from headwise.hf.linear_layers import own_class

_READS_TOKENS = "input_ids"
# What transformers derives its layers from, wherever they stand.
_CHECKPOINTED = "GradientCheckpointingLayer"


class Layer(NamedTuple):
    """One layer of a stack, the outermost that holds attention.

    Attributes:
        module: The layer.
        source: What its model reads; padding is marked among tokens alone.
    """

    module: nn.Module
    source: str

    def refusal(self) -> str | None:
        """Say why padding must go through the layer; ``None`` where it need not."""
        if self.source != _READS_TOKENS:
            return f"its model reads {self.source}, of which no mask says what is padding"
        return refusal(self.module)


def layers_of(model: nn.Module) -> Iterator[Layer]:
    """Return every layer of every stack once, those of torch and headwise left out."""
    yield from _found(model, _READS_TOKENS, False, set())


def _found(module: nn.Module, source: str, stacked: bool, seen: set[nn.Module]) -> Iterator[Layer]:
    kind = own_class(module)
    if module in seen or kind.__module__.startswith("headwise."):
        return
    seen.add(module)
    source = getattr(kind, "main_input_name", source)
    stacked = stacked or any(base.__name__ == _CHECKPOINTED for base in kind.__mro__)
    if stacked and not kind.__module__.startswith("torch.") and _holds_attention(module):
        yield Layer(module, source)
        return
    for child in module.children():
        yield from _found(child, source, isinstance(module, nn.ModuleList), seen)


def _holds_attention(module: nn.Module) -> bool:
    kinds = (own_class(part) for part in module.modules() if part is not module)
    return any(named_attention(k) or uses_interface(k) or attends_itself(k) for k in kinds)

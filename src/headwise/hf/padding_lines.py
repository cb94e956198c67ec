"""Says of the layers of a model whether padding goes through them, and why."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from headwise.hf.accelerated.encoder_layers import Layer, layers_of
from headwise.hf.accelerated.swap import is_packed
from headwise.hf.linear_layers import own_class


def lines_about_padding(model: nn.Module, notes: Mapping[nn.Module, str]) -> Iterator[str]:
    """Return a line for all layers that are alike.

    Args:
        model: Any module.
        notes: What is to be said of the last call of a layer.
    """
    alike = Counter(
        (own_class(layer.module).__name__, *_state(layer, notes)) for layer in layers_of(model)
    )
    for (kind, where, reason), count in alike.items():
        yield f"padding: {where} {count} {kind}{reason}"


def _state(layer: Layer, notes: Mapping[nn.Module, str]) -> tuple[str, str]:
    """Say whether padding goes through a layer, and what is to be said of that."""
    if not is_packed(layer.module):
        reason = layer.refusal()
        wish = "; hf.accelerate(model, unpad=True) leaves it out"
        return "goes through", wish if reason is None else f": {reason}"
    kind: Any = type(layer.module)
    note = notes.get(layer.module)
    last = "" if note is None else f"; the last call did: {note}"
    return "left out of", f"; {kind.hands_over} run the code of their own class{last}"

"""What a pass is asked to show beside its result: hidden states, and weights of attention."""

from typing import Any

from torch import Tensor

from headwise.nn import TransformerBlock
from headwise.nn.weights import weights_of


class Seen:
    """Collects hidden states and weights, block by block, of those that are wanted."""

    def __init__(self, hidden_states: bool, attentions: bool) -> None:
        self._states: list[Tensor] | None = [] if hidden_states else None
        self._weights: list[list[Tensor]] | None = [] if attentions else None

    def state(self, x: Tensor) -> None:
        """Take the hidden states before a block, or behind the last norm."""
        if self._states is not None:
            self._states.append(x)

    def weights(self, found: list[Tensor]) -> None:
        """Take the weights of a block: of its attention, and of its cross attention."""
        if self._weights is not None:
            self._weights.append(found)

    def outputs(self) -> dict[str, tuple[Tensor, ...] | None]:
        """Return what was collected, under the names of transformers."""
        weights = [] if self._weights is None else list(zip(*self._weights, strict=True))
        return {
            "hidden_states": None if self._states is None else tuple(self._states),
            "attentions": weights[0] if weights else None,
            "cross_attentions": weights[1] if len(weights) > 1 else None,
        }


def run_block(
    block: TransformerBlock, x: Tensor, memory: Tensor | None, *, shows: bool, **given: Any
) -> tuple[Tensor, ...]:
    """Return what a block makes of ``x``, and where it ``shows`` them, its weights of attention.

    Nothing leaves by another way, so that checkpointing may run it again.
    """
    if not shows:
        return (block(x, memory, **given),)
    found: list[Tensor] = []

    def watch(layer: Any, args: tuple[Tensor, ...], named: dict[str, Any], _: Tensor) -> None:
        names = ("key", "kv_mask", "q_offset", "cache")
        settings = {name: named.get(name) for name in names}
        found.append(weights_of(layer, args[0], slot=named.get("layer"), **settings))

    layers = (block.attention, block.cross_attention)
    hooks = [
        layer.register_forward_hook(watch, with_kwargs=True)
        for layer in layers
        if layer is not None
    ]
    try:
        made = block(x, memory, **given)
    finally:
        for hook in hooks:
            hook.remove()
    return (made, *found)

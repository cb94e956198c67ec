"""What a pass is asked to show beside its result: hidden states, and weights of attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from headwise.nn import TransformerBlock
from headwise.nn.weights import weights_of


class Seen:
    """Collects hidden states and exact weights, block by block, of those that are wanted."""

    def __init__(self, hidden_states: bool, attentions: bool) -> None:
        self._states: list[Tensor] | None = [] if hidden_states else None
        self._weights: dict[str, list[Tensor]] | None = (
            {"attention": [], "cross_attention": []} if attentions else None
        )

    def state(self, x: Tensor) -> None:
        """Take the hidden states before a block, or behind the last norm."""
        if self._states is not None:
            self._states.append(x)

    @contextmanager
    def weights_in(self, block: TransformerBlock) -> Iterator[None]:
        """Compute the weights of a block's attention from what that is given in here."""
        if self._weights is None:
            yield
            return
        hooks = []
        for name, found in self._weights.items():
            layer = getattr(block, name)
            if layer is not None:
                hooks.append(layer.register_forward_hook(_Watch(found), with_kwargs=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def outputs(self) -> dict[str, tuple[Tensor, ...] | None]:
        """Return what was collected, under the names of transformers."""
        weights = self._weights or {}
        return {
            "hidden_states": None if self._states is None else tuple(self._states),
            "attentions": tuple(weights["attention"]) if weights else None,
            "cross_attentions": tuple(weights.get("cross_attention", ())) or None,
        }


class _Watch:
    """A hook that computes the weights of a call."""

    def __init__(self, found: list[Tensor]) -> None:
        self._found = found

    def __call__(
        self, layer: Any, args: tuple[Tensor, ...], named: dict[str, Any], output: Tensor
    ) -> None:
        self._found.append(
            weights_of(
                layer,
                args[0],
                named.get("key"),
                kv_mask=named.get("kv_mask"),
                q_offset=named.get("q_offset"),
                cache=named.get("cache"),
                slot=named.get("layer"),
            )
        )

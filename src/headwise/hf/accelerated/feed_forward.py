"""Linear layers with an activation behind them, in one step each.

Every model of transformers has classes of its own for these, and most are alike but for their
names; ``straight_code`` finds out what each computes, so that none is listed here.
"""

from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.hf.accelerated.activations import name_of
from headwise.hf.accelerated.autocast import autocasts
from headwise.hf.accelerated.conv1d import FastConv1D
from headwise.hf.accelerated.linear import FastLinear, is_heard
from headwise.hf.accelerated.straight_code import (
    Computed,
    Input,
    Product,
    Step,
    computed_by,
    names_in,
)
from headwise.hf.accelerated.swap import base_of
from headwise.ops.projection import linear

_PACKAGE = "transformers."
# Methods that may hold the code; the second is what DistilBERT's ``forward`` cuts its input for.
_METHODS = ("forward", "ff_chunk")
_LAYERS = (FastLinear, FastConv1D)


class FastFeedForward(nn.Module):
    """Modules applied one after the other; a linear layer and the activation behind it are one.

    The original code runs under autocast and under a compiler, which fuses by itself.
    """

    hands_over = "calls under autocast or a compiler"
    computed: Step | Product
    original: Callable[[nn.Module, Tensor], Tensor]

    @classmethod
    def refusal(cls, module: nn.Module) -> str | None:
        """Leave what holds no linear layer with an activation that can be fused."""
        inside = {name: getattr(module, name, None) for name in names_in(cls.computed)}
        if not all(isinstance(part, nn.Module) for part in inside.values()):
            return "it holds other things than modules"
        fits = any(_can_fuse(inside[a], inside[b]) for a, b in _neighbours(cls.computed))
        return None if fits else "it has no activation that can be fused"


@cache
def fast_feed_forward(kind: type[nn.Module]) -> Any:
    """Return the fast class for one of transformers; ``None`` where its code is another."""
    ours = kind.__module__.startswith(_PACKAGE) and "<locals>" not in kind.__qualname__
    if not ours or issubclass(kind, PreTrainedModel):
        return None
    for name in _METHODS:
        original: Any = getattr(kind, name, None)
        computed = computed_by(original)
        if computed is not None and next(_neighbours(computed), None):
            place = f"{kind.__module__}.{kind.__qualname__}".replace(".", "/")
            members: dict[str, Any] = {"__module__": __name__, "__qualname__": place}
            members |= {"computed": computed, "original": staticmethod(original), name: _fused}
            return type(f"Fast{kind.__name__}", (FastFeedForward, kind), members)
    return None


def __getattr__(name: str) -> Any:
    """Return the fast class by the name under which a saved module asks for it."""
    module, _, kind = name.replace("/", ".").rpartition(".")
    found = None
    if module.startswith(_PACKAGE):
        found = fast_feed_forward(getattr(import_module(module), kind))
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def _fused(self: FastFeedForward, hidden_states: Tensor) -> Tensor:
    if torch.compiler.is_compiling() or autocasts(hidden_states):
        return self.original(self, hidden_states)
    return _run(self, self.computed, hidden_states)


def _run(module: nn.Module, computed: Computed, x: Tensor) -> Tensor:
    if isinstance(computed, Input):
        return x
    if isinstance(computed, Product):
        return _run(module, computed.left, x) * _run(module, computed.right, x)
    parts: Any = module._modules
    inside, before = parts[computed.name], computed.of
    if isinstance(before, Step):
        layer, activation = parts[before.name], name_of(inside)
        special = type(layer) not in _LAYERS or _is_special(layer) or _is_special(inside)
        if activation is not None and not special:
            x = _run(module, before.of, x)
            weight = layer.weight if type(layer) is FastLinear else layer.weight.t()
            return linear(x, weight, layer.bias, activation)
    found: Tensor = inside(_run(module, before, x))
    return found


def _is_special(module: nn.Module) -> bool:
    """Say whether a module must be called: somebody listens to it or has replaced its code."""
    return "forward" in module.__dict__ or is_heard(module)


def _can_fuse(layer: nn.Module | None, activation: nn.Module | None) -> bool:
    kinds = (*_LAYERS, *map(base_of, _LAYERS))
    return type(layer) in kinds and activation is not None and name_of(activation) is not None


def _neighbours(computed: Computed) -> Iterator[tuple[str, str]]:
    """Return the names of modules that stand one right after the other."""
    if isinstance(computed, Product):
        yield from _neighbours(computed.left)
        yield from _neighbours(computed.right)
    elif isinstance(computed, Step):
        if isinstance(computed.of, Step):
            yield computed.of.name, computed.name
        yield from _neighbours(computed.of)

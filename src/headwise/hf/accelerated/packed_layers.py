"""Layers of encoders that leave padding out: real tokens alone go through them, in one row.

A layer packs what it is given and returns the shape that it was given, with zeros at padding. So
models, their outputs and gradient checkpointing see nothing of it, and it does not count which
code runs a stack of layers.
"""

from collections.abc import Callable, Iterator
from functools import cache, reduce
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from headwise.errors import BackendRefused
from headwise.hf.accelerated.packing import NOTHING, Packing, packing_of
from headwise.hf.accelerated.refusals import other_numbers
from headwise.hf.accelerated.token_wise import refusal
from headwise.hf.attention import wants_weights
from headwise.hf.linear_layers import own_class
from headwise.hf.pattern_mask import PatternMask
from headwise.hf.report import notes

# Arguments that say something of each token and are packed with it.
_OF_TOKENS = ("position_embeddings", "position_ids")
_RECORDER = "transformers.utils.output_capturing"

# Classes of all parts of a layer when its code was last looked at; parts may be replaced.
_checked: "WeakKeyDictionary[nn.Module, tuple[type, ...]]" = WeakKeyDictionary()


class PackedLayer(nn.Module):
    """A layer that computes real tokens alone where its mask says that some are padding."""

    hands_over = (
        "calls for attention weights, with a cache, with more of each token than hidden states "
        "and positions or a mask of other making, of padding alone, in float64, off the CPU, under "
        "torch.compile, torch.jit or a transform, and while hooks listen inside"
    )

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Run the code of the layer, on real tokens alone if it can be.

        Args:
            hidden_states: (batch, length, width).
            attention_mask: What the model's mask function made.
            args: What else the layer takes.
            kwargs: Likewise, by name.

        Returns:
            What the layer returns, with zeros at padding.
        """
        theirs: Any = super().forward
        if torch.compiler.is_compiling():
            return theirs(hidden_states, attention_mask, *args, **kwargs)
        packing = self._packing(hidden_states, attention_mask, args, kwargs)
        notes.pop(self, None)
        if isinstance(packing, str):
            if packing != NOTHING:
                notes[self] = packing
            return theirs(hidden_states, attention_mask, *args, **kwargs)
        for name in _OF_TOKENS:
            if kwargs.get(name) is not None:
                kwargs[name] = _packed(kwargs[name], packing)
        found = theirs(packing.packed(hidden_states), packing.mask, *args, **kwargs)
        return _padded(self, found, packing)

    def _packing(
        self, x: Tensor, mask: Any, args: tuple[Any, ...], named: dict[str, Any]
    ) -> Packing | str:
        """Return how the call is packed, or why it is not."""
        if type(mask) is not PatternMask:
            return NOTHING if mask is None else "its mask is not of headwise's making"
        packing = packing_of(mask)
        if isinstance(packing, str):
            return packing
        return next(self._reasons(x, packing, args, named), packing)

    def _reasons(
        self, x: Tensor, packing: Packing, args: tuple[Any, ...], named: dict[str, Any]
    ) -> Iterator[str]:
        yield from filter(None, [other_numbers(x.device, x.dtype)])
        if wants_weights(named):
            yield "it asked for attention weights"
        if x.shape[:2] != packing.size:
            yield f"it has {tuple(x.shape[:2])} tokens and a mask for {packing.size}"
        more = _more(args, named, packing)
        if more is not None:
            yield f"it was given {more}"
        if _is_heard(self):
            yield "hooks listen inside"
        kinds = tuple(type(part) for part in self.modules())
        if _checked.get(self) != kinds:
            yield from filter(None, [refusal(self)])
            _checked[self] = kinds


@cache
def packed_class(kind: type) -> Any:
    """Return the class that stands in for that of a layer."""
    place = f"{kind.__module__}:{kind.__qualname__}".replace(".", "/")
    members = {"__module__": __name__, "__qualname__": place}
    return type(f"Packed{kind.__name__}", (PackedLayer, kind), members)


def __getattr__(name: str) -> Any:
    """Return the class by the name under which a saved layer asks for it."""
    module, _, path = name.partition(":")
    if not path:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return packed_class(reduce(getattr, path.split("/"), import_module(module.replace("/", "."))))


def _packed(given: Any, packing: Packing) -> Any:
    if isinstance(given, Tensor):
        return packing.packed(given)
    return tuple(packing.packed(part) for part in given)


def _padded(layer: nn.Module, found: Any, packing: Packing) -> Any:
    states, *others = found if isinstance(found, tuple) else (found,)
    total = len(packing.place)
    if states.shape[:2] != (1, total) or any(isinstance(part, Tensor) for part in others):
        shapes = [tuple(part.shape) for part in (states, *others) if isinstance(part, Tensor)]
        raise BackendRefused(
            f"hf.accelerate: unpad=True runs {own_class(layer).__name__} on {total} tokens in "
            f"a row, and must get one tensor (1, {total}, width) back, got {shapes}\n"
            "  hint: call hf.accelerate(model) without unpad"
        )
    padded = packing.padded(states)
    return (padded, *others) if isinstance(found, tuple) else padded


def _more(args: tuple[Any, ...], named: dict[str, Any], packing: Packing) -> str | None:
    """Name what a call gives the layer that says more of tokens than can be packed."""
    for name, value in [*(("", value) for value in args), *named.items()]:
        parts = value if isinstance(value, (tuple, list)) else [value]
        tensors = [part for part in parts if isinstance(part, Tensor)]
        if name in _OF_TOKENS and value is not None:
            sizes = (packing.size, (1, packing.size[1]))
            fits = len(tensors) == len(parts) and all(part.shape[:2] in sizes for part in tensors)
        else:
            fits = all(_says_nothing(part) for part in parts)
        if not fits:
            shown = ", ".join(_described(part) for part in parts)
            return f"{name or 'an argument more'}, {shown}"
    return None


def _says_nothing(value: Any) -> bool:
    """Say whether an argument is one number, a word or a choice for the whole call."""
    if isinstance(value, Tensor):
        return not value.ndim
    return value is None or isinstance(value, (bool, int, float, str))


def _described(value: Any) -> str:
    shape = f" {tuple(value.shape)}" if isinstance(value, Tensor) else ""
    return type(value).__name__ + shape


def _is_heard(layer: nn.Module) -> bool:
    """Say whether somebody but transformers' recorder, which was asked, listens to a part."""
    anywhere = (
        torch_modules._global_forward_hooks,
        torch_modules._global_forward_pre_hooks,
        torch_modules._global_backward_hooks,
        torch_modules._global_backward_pre_hooks,
    )
    return any(anywhere) or any(_has_hooks(part) for part in layer.modules() if part is not layer)


def _has_hooks(part: nn.Module) -> bool:
    if part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks:
        return True
    hooks: Iterator[Callable[..., Any]] = iter(part._forward_hooks.values())
    return any(getattr(hook, "__module__", "") != _RECORDER for hook in hooks)

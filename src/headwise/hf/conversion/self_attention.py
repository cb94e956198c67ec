"""Finds the self-attention of a model, and says what each module asks of whoever computes it."""

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from headwise.errors import BackendRefused
from headwise.hf.conversion.converted import conversions
from headwise.hf.families import (
    attends_itself,
    masks_made_by,
    named_attention,
    own_attention,
    uses_interface,
)
from headwise.hf.linear_layers import own_class
from headwise.nn.mechanism import LayerSettings
from headwise.patterns import BlockWindow, Causal, Full, Pattern, Window

# Names of the sizes in the modules of transformers, the most exact one first.
_HEADS = ("num_attention_heads", "num_heads", "n_heads")
_WIDTHS = ("qk_head_dim", "head_dim", "attention_head_size", "head_size", "key_value_proj_dim")


class SelfAttention(NamedTuple):
    """One module of self-attention that asks transformers' interface.

    Attributes:
        number: Which one of the model, from 0, in the order of the model.
        name: Where it stands in the model.
        module: The module.
        own: Whom it lets see whom, apart from padding.
    """

    number: int
    name: str
    module: nn.Module
    own: Pattern

    @property
    def called(self) -> str:
        """What to call it in a message."""
        return f"{self.name} ({type(self.module).__name__})"

    @property
    def slides(self) -> bool:
        """Whether it sees a part of the tokens only, so that a cache may keep no more."""
        return not isinstance(self.own, Causal | Full)

    def settings(self, *, dropout: float) -> LayerSettings:
        """Return what every call asks of a mechanism."""
        module: Any = self.module
        biased = hasattr(module, "has_relative_attention_bias")
        sinks = getattr(module, "sinks", None) is not None
        return LayerSettings(
            None if isinstance(self.own, Full) else self.own,
            torch.zeros(1, 1, 1, 1) if biased else None,
            getattr(module, "attn_logit_softcapping", None),
            sinks,
            dropout,
        )

    def sizes(self) -> dict[str, int]:
        """Return the sizes that a mechanism is fitted to, by name."""
        module: Any = self.module
        heads = _first(module, _HEADS) or self._configured("num_attention_heads")
        groups = getattr(module, "num_key_value_groups", None)
        kv_heads = getattr(module, "num_key_value_heads", None)
        if kv_heads is None:
            kv_heads = heads if groups is None else heads // groups
        width = _first(module, _WIDTHS) or self._configured("hidden_size") // heads
        return {
            "q_heads": heads,
            "kv_heads": kv_heads,
            "head_dim": width,
            "value_dim": getattr(module, "v_head_dim", width),
        }

    def _configured(self, name: str) -> int:
        found = getattr(getattr(self.module, "config", None), name, None)
        if not isinstance(found, int):
            raise BackendRefused(
                f"convert: {self.called} does not say its {name}, which a mechanism is fitted to\n"
                "  hint: patterns need no sizes; tell us of this model"
            )
        return found


def self_attention(model: nn.Module) -> list[SelfAttention]:
    """Return the self-attention of a model, or refuse one whose attention cannot be replaced.

    Raises:
        BackendRefused: A model that attends by its own code, or that has no such module.
    """
    for name, part in model.named_modules():
        own = _own_code(part)
        if own:
            raise BackendRefused(
                f"convert: {name or 'the model'} ({own_class(part).__name__}) attends by its own "
                f"code ({', '.join(own)}), which never asks for another attention\n"
                "  hint: patterns.longformer and patterns.bigbird make these of RoBERTa and BERT; "
                "headwise.hf.accelerate(model) makes this one faster as it is"
            )
    found = list(_asking(model))
    if not found:
        raise BackendRefused(
            f"convert: {type(model).__name__} has no self-attention that asks transformers' "
            "attention interface\n"
            "  hint: give a transformers model, or what contains one; of layers of your own, "
            "headwise.MultiHeadAttention takes pattern= and mechanism="
        )
    return [SelfAttention(number, *rest) for number, rest in enumerate(found)]


def refuse_left(model: nn.Module, count: int) -> None:
    """Refuse to convert all of a model that has other attention beside the kind that can be.

    Raises:
        BackendRefused: An attention module whose code never asks for another one.
    """
    given = {inner for part in conversions(model) for inner in part.modules()}
    for name, part in model.named_modules():
        kind = own_class(part)
        ours = part in given or kind.__module__.startswith("headwise.")
        if attends_itself(kind) and named_attention(kind) and not ours:
            raise BackendRefused(
                f"convert: {name} ({kind.__name__}) attends by its own code, which never asks for "
                f"another attention\n  hint: layers=range({count}) converts the modules that do; "
                "headwise.hf.report(model) lists them all"
            )


def is_cross(name: str, module: nn.Module) -> bool:
    """Say whether an attention module reads another sequence than its own."""
    outer, last = ("", *name.lower().split("."))[-2:]
    return (
        "cross" in type(module).__name__.lower()
        or "cross" in outer
        or "cross" in last
        or last.startswith("enc")
        or getattr(module, "is_cross_attention", False) is True
    )


def _asking(model: nn.Module) -> Iterator[tuple[str, nn.Module, Pattern]]:
    around: dict[str, str] = {}
    for name, module in model.named_modules():
        outer = around.get(name.rpartition(".")[0], "none") if name else "none"
        masks = masks_made_by(type(module))
        around[name] = outer if masks == "none" else masks
        if uses_interface(type(module)) and not is_cross(name, module):
            known = {"causal": True, "free": False}.get(around[name])
            causal = bool(getattr(module, "is_causal", False)) if known is None else known
            yield name or "the model", module, _own_pattern(module, causal)


def _own_pattern(module: nn.Module, causal: bool) -> Pattern:
    """Return whom a module lets see whom, apart from padding."""
    window = getattr(module, "sliding_window", None)
    chunk = None
    if causal and not hasattr(module, "sliding_window"):
        window, chunk = _of_layer(module)
    own: Pattern = Causal() if causal else Full()
    if window:
        own = own & Window(window - 1, None if causal else window - 1)
    if chunk:
        own = own & BlockWindow(chunk, 0, 0)
    return own


def _of_layer(module: Any) -> tuple[int | None, int | None]:
    """Return the sliding window and the chunks of a decoder's layer, as its configuration says."""
    from transformers.cache_utils import get_layer_types_and_kwargs

    number = getattr(module, "layer_idx", None)
    config = getattr(module, "config", None)
    if number is None or config is None:
        return None, None
    kinds, numbers = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
    if number >= len(kinds):
        return None, None
    size = numbers[number].get("sliding_window")
    return (None, size) if kinds[number] == "chunked_attention" else (size, None)


def _own_code(part: nn.Module) -> tuple[str, ...]:
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(part, transformers.PreTrainedModel):
        return ()
    return own_attention(sys.modules[own_class(part).__module__])


def _first(module: nn.Module, names: tuple[str, ...]) -> int | None:
    values = (getattr(module, name, None) for name in names)
    return next((value for value in values if isinstance(value, int)), None)

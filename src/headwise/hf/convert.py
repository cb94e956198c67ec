"""Gives a trained model another attention in place, and its own back."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import nn

from headwise.errors import BackendRefused
from headwise.hf.accelerated.swap import is_packed, swap_back
from headwise.hf.conversion.converted import PART, WAITING, conversions
from headwise.hf.conversion.replacement import Planned, chosen_layers, plan
from headwise.hf.conversion.saved import forget, forget_entry
from headwise.hf.conversion.self_attention import SelfAttention, refuse_left, self_attention
from headwise.hf.implementation import choose_headwise
from headwise.hf.register import register
from headwise.hf.requirement import require_module, require_transformers
from headwise.nn.mechanism import Mechanism
from headwise.patterns import Pattern

Model = TypeVar("Model", bound=nn.Module)


def convert(
    model: Model,
    mechanism: Pattern | Mechanism | Callable[[int], Pattern | Mechanism | None] | None,
    *,
    layers: Sequence[int] | None = None,
) -> Model:
    """Replace the self-attention of a trained transformers model; in place, weights kept.

    A pattern is and-ed with the masks of the model, its causality and its padding. Positions are
    absolute in a row of the batch: with padding on the left the first token of a row is padding,
    and ``GlobalTokens(0)`` means that one. A mechanism takes the place of the softmax, and gets
    queries scaled so that its scale, ``head_dim ** -0.5``, is the one of the model. Every layer has
    a copy of its own, whose parameters are part of the model. Its keys and values stay in the
    cache, so a step of decoding reads them all. Cross attention stays as it is, and converted
    layers compute padding, too, where ``accelerate`` had them leave it out.

    ``headwise.hf.report`` names what each module attends by, ``headwise.hf.drift`` says how far
    that moves the hidden states, and ``headwise.hf.restore`` undoes it. The model runs with
    ``attn_implementation="headwise"`` from here on, and gives the weights of what it computes where
    a call asks for ``output_attentions``.

    Args:
        model: A model of transformers, or a module that contains some.
        mechanism: A pattern; an object that follows ``headwise.nn.Mechanism``, such as
            ``LinearAttention``, ``RandomFeatures`` or ``LowRank``; a function from the number of a
            layer to one of these, which is then used as it is; ``None`` = softmax attention.
        layers: Numbers of the self-attention modules, in the order of the model; ``None`` = all.

    Returns:
        The same model.

    Raises:
        BackendRefused: A model whose attention is code of its own, or a mechanism that cannot do
            what a module asks: low-rank attention in a decoder, position bias, softcap or sinks
            with linear attention. Nothing has been changed then, nor after any other error.
        PatternError: A pattern that leaves nothing to see, or for another number of heads.
        ShapeError: A layer that there is not.
        TypeError: A mechanism that is none, or something that is no module.

    Example:
        >>> import headwise as hw
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(
        ...     hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=16
        ... )
        >>> model = hw.hf.convert(BertModel(config), hw.Window(64, 64), layers=[1])
        >>> print([row.reason for row in hw.hf.report(model)])
        ['', 'converted to Window(left=64, right=64, dilation=1)']
    """
    require_transformers()
    require_module("convert", model)
    found = self_attention(model)
    if layers is None and mechanism is not None:
        refuse_left(model, len(found))
    _refuse_unreached(model, found)
    planned = plan(chosen_layers(found, layers), mechanism)
    choose_headwise(model)
    register()
    for each in planned:
        _replace(each)
    for module in model.modules():
        if is_packed(module) and any(conversions(module)):
            swap_back(module)
    forget_entry(model)
    return model


def _refuse_unreached(model: nn.Module, found: Sequence[SelfAttention]) -> None:
    """Refuse a part of a model that decides for it which attention is asked."""
    from transformers import PreTrainedModel

    whole = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    inside = {module for part in whole for module in part.modules()}
    for each in found:
        config = getattr(each.module, "config", None)
        if each.module not in inside and getattr(config, "_attn_implementation", "") != "headwise":
            raise BackendRefused(
                f"convert: {each.called} is of a model that was not given, and asks it for "
                "another attention than headwise's\n"
                "  hint: give the whole model, with layers=; or call "
                "model.set_attn_implementation('headwise') of the whole one first"
            )


def _replace(planned: Planned) -> None:
    module, part = planned.of.module, planned.part
    waiting = vars(module).get(WAITING)
    forget(module)
    if part is not None:
        part.without_weights = bool(waiting and waiting["tensors"] and part.state_dict())
        module.add_module(PART, part)

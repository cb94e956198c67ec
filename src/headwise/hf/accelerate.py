"""Makes a model faster in place: its attention, and what stands around it."""

from collections.abc import Iterator
from typing import Any, TypeVar

from torch import nn

from headwise.hf.accelerated.encoder_layers import layers_of
from headwise.hf.accelerated.families import fast_class_of
from headwise.hf.accelerated.swap import is_fast, is_packed, refusal_of, swap, swap_back
from headwise.hf.conversion.saved import unconvert
from headwise.hf.implementation import choose_as_before, choose_headwise
from headwise.hf.requirement import require_module

Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model, *, unpad: bool = False) -> Model:
    """Let every known part of a model compute the same sooner; in place, see ``restore``.

    Attention that asks transformers' interface is sent through headwise. Attention of known
    families that runs code of its own, torch's own layers, linear layers, and activations behind
    them get classes that compute the same on faster kernels. Parameters, their names, hooks and
    outputs stay (to rounding), so the model saves, loads and trains as before. What is left runs as
    it did; ``headwise.hf.report`` says what that is, and why. Quantise first: quantised layers are
    left, and what quantises layers knows them by their own classes.

    With ``unpad=True`` the layers of encoders compute the real tokens of a padded batch alone,
    and return its shape. What they return at padding is zeros (the bias of a norm, where a model
    has one behind them), and else numbers without a meaning: what reads them, as a pooler of the
    first token does of a text padded on the left, or a mean without the mask, has another result.
    Real tokens have the same one, to rounding, and so have gradients; dropout draws other numbers.
    Layers are taken where their code shows that it computes each token by itself but for attention.

    Args:
        model: Any module: a model of transformers, one that contains some, or a part of one.
            Calling it again changes nothing but what ``unpad`` asks for.
        unpad: Whether encoders leave padding out. ``False`` ends it where it was asked for before.

    Returns:
        The same model.

    Raises:
        TypeError: Something that is no module, or ``unpad`` that is no bool.

    Example:
        >>> import headwise as hw, torch
        >>> model = hw.hf.accelerate(torch.nn.Sequential(torch.nn.Linear(8, 8)))
        >>> print(hw.hf.report(model))
        Sequential: headwise serves 0 of 0 attention modules
          linear layers: 1 accelerated
        >>> hw.hf.restore(model)
        Sequential(
          (0): Linear(in_features=8, out_features=8, bias=True)
        )
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(
        ...     hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16
        ... )
        >>> model = hw.hf.accelerate(BertModel(config).eval(), unpad=True)
        >>> ids, real = torch.randint(1, 30, (2, 5)), torch.tensor([[1, 1, 1, 0, 0], [1] * 5])
        >>> states = model(ids, attention_mask=real).last_hidden_state
        >>> states.shape, bool(states[0, 3:].any())
        (torch.Size([2, 5, 8]), False)
    """
    require_module("accelerate", model)
    if not isinstance(unpad, bool):
        raise TypeError(
            f"accelerate: unpad must be True or False, got {unpad!r}\n"
            "  hint: which tokens are padding says attention_mask, in each call"
        )
    _choose_padding(model, unpad)
    for module in parts(model):
        fast = fast_class_of(module)
        if fast is not None and refusal_of(module, fast) is None:
            swap(module, fast)
    choose_headwise(model)
    return model


def restore(model: Model) -> Model:
    """Undo ``accelerate`` and ``convert``: every part computes as it did before; in place.

    While another model that is accelerated or converted shares its configuration, which says what
    attention both ask for, attention still goes through headwise, as ``headwise.hf.report`` says.

    Args:
        model: What was accelerated or converted, or a part of it.

    Returns:
        The same model.

    Raises:
        TypeError: Something that is no module.
    """
    require_module("restore", model)
    for module in model.modules():
        if is_fast(module):
            swap_back(module)
    unconvert(model)
    choose_as_before(model)
    return model


def _choose_padding(model: nn.Module, unpad: bool) -> None:
    """Let layers that can leave padding out do so, or compute it again."""
    for layer in [*layers_of(model)]:
        if is_packed(layer.module):
            if not unpad:
                swap_back(layer.module)
        elif unpad and layer.refusal() is None:
            from headwise.hf.accelerated.packed_layers import packed_class

            kind: Any = type(layer.module)
            swap(layer.module, packed_class(kind))


def parts(model: nn.Module) -> Iterator[nn.Module]:
    """Return every module once, but for those inside headwise's own layers, which are fast."""
    seen: set[nn.Module] = set()
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            yield module
            if not type(module).__module__.startswith("headwise.nn."):
                waiting.extend(reversed([*module.children()]))

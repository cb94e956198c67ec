"""Makes a model faster in place: its attention, and what stands around it."""

from typing import TypeVar

from torch import nn

from headwise.hf.accelerated.families import fast_class_of
from headwise.hf.accelerated.swap import is_fast, swap, swap_back
from headwise.hf.implementation import choose_as_before, choose_headwise

Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model) -> Model:
    """Let every known part of a model compute the same sooner; in place, see ``restore``.

    Attention that asks transformers' interface is sent through headwise, and plain linear layers
    get a class that computes the same on faster kernels. Parameters, their names, hooks and outputs
    stay (to rounding), so the model saves, loads and trains as before. ``headwise.hf.report`` says
    which attention is served and which is left, and why.

    Args:
        model: Any module: a model of transformers, or one that contains some.

    Returns:
        The same model.

    Example:
        >>> import headwise as hw, torch
        >>> model = hw.hf.accelerate(torch.nn.Sequential(torch.nn.Linear(8, 8)))
        >>> hw.hf.restore(model)
        Sequential(
          (0): Linear(in_features=8, out_features=8, bias=True)
        )
    """
    for module in model.modules():
        fast = fast_class_of(module)
        if fast is not None and fast.refusal(module) is None:
            swap(module, fast)
    choose_headwise(model)
    return model


def restore(model: Model) -> Model:
    """Undo ``accelerate``: every part computes as it did before; in place.

    Args:
        model: What was accelerated, or a part of it.

    Returns:
        The same model.
    """
    for module in model.modules():
        if is_fast(module):
            swap_back(module)
    choose_as_before(model)
    return model

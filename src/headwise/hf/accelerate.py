"""Makes a model faster in place: its attention, and what stands around it."""

from collections.abc import Iterator
from typing import TypeVar

from torch import nn

from headwise.hf.accelerated.families import fast_class_of
from headwise.hf.accelerated.swap import is_fast, refusal_of, swap, swap_back
from headwise.hf.implementation import choose_as_before, choose_headwise

Model = TypeVar("Model", bound=nn.Module)


def accelerate(model: Model) -> Model:
    """Let every known part of a model compute the same sooner; in place, see ``restore``.

    Attention that asks transformers' interface is sent through headwise. Attention of known
    families that runs code of its own, torch's own layers, linear layers, and activations behind
    them get classes that compute the same on faster kernels. Parameters, their names, hooks and
    outputs stay (to rounding), so the model saves, loads and trains as before. What is left runs as
    it did; ``headwise.hf.report`` says what that is, and why.

    Args:
        model: Any module: a model of transformers, one that contains some, or a part of one.
            Calling it again changes nothing.

    Returns:
        The same model.

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
    """
    for module in parts(model):
        fast = fast_class_of(module)
        if fast is not None and refusal_of(module, fast) is None:
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

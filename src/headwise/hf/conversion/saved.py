"""What files of a converted model say of it, so that it is not loaded as something else.

The configuration has two more entries: ``headwise_attention``, which says of every converted
module by what it attended, and ``attn_implementation``. transformers without headwise does not know
that implementation and refuses to load the model; with it, the modules wait to be converted again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from headwise.errors import BackendRefused
from headwise.hf.conversion.converted import PART, WAITING, Converted, conversions

ENTRY = "headwise_attention"
_NAME = "headwise"
_IMPLEMENTATION = "attn_implementation"


def record(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return of every converted module, by its name, what it attends by."""
    found: dict[str, dict[str, Any]] = {}
    for name, module in model.named_modules():
        part = module._modules.get(PART)
        if isinstance(part, Converted):
            found[name] = {
                "attention": part.described(),
                "tensors": bool(part.state_dict()),
            }
        elif WAITING in vars(module):
            found[name] = vars(module)[WAITING]
    return found


@contextmanager
def recorded(model: Any) -> Iterator[None]:
    """Have the configuration of a model say what is converted while the block runs."""
    found = record(model)
    if not found:
        yield
        return
    config = model.config
    setattr(config, ENTRY, found)
    setattr(config, _IMPLEMENTATION, _NAME)
    try:
        yield
    finally:
        delattr(config, ENTRY)
        delattr(config, _IMPLEMENTATION)


def let_wait(model: Any) -> None:
    """Mark the modules of a new model that its configuration says were converted.

    A model with another head, or without one, has the same modules under longer or shorter names.
    """
    entry = getattr(model.config, ENTRY, None)
    if not entry:
        return
    for name, module in model.named_modules():
        vars(module).pop(WAITING, None)
        for saved, was in entry.items():
            if _ends_with(name, saved) or _ends_with(saved, name):
                setattr(module, WAITING, was)


def implementation_for(model: Any, requested: str | None) -> str | None:
    """Return the implementation that a new model is to have, or refuse another.

    Raises:
        BackendRefused: Another attention than headwise's for a model that was saved converted.
    """
    entry = getattr(model.config, ENTRY, None)
    if not entry or requested == _NAME:
        return requested
    if requested is None:
        return _NAME
    first = next(iter(entry.values()))["attention"]
    raise BackendRefused(
        f"{type(model).__name__}: the model was saved with the attention {first} in "
        f"{len(entry)} modules, got attn_implementation={requested!r}, which has softmax alone\n"
        "  hint: leave attn_implementation out and convert the model as before it was saved; for "
        "softmax attention call headwise.hf.restore(model) then, and set_attn_implementation"
    )


def refuse_other_attention(model: nn.Module, name: object) -> None:
    """Refuse to send a converted model through attention that knows nothing of it.

    Raises:
        BackendRefused: Some of its modules are converted.
    """
    part = next(conversions(model), None)
    if part is not None:
        raise BackendRefused(
            f"{type(model).__name__}: attn_implementation={name!r} has softmax attention alone, "
            f"and modules of the model are converted to {part.described()}\n"
            "  hint: headwise.hf.convert(model, None) makes it softmax attention again"
        )


def forget(module: nn.Module) -> None:
    """Take out of a module what stands for, or waits for, another attention."""
    module._modules.pop(PART, None)
    vars(module).pop(WAITING, None)


def unconvert(model: nn.Module) -> None:
    """Let every module of a model attend by softmax, as its own code does; in place."""
    for module in model.modules():
        forget(module)
    forget_entry(model)


def forget_entry(model: nn.Module) -> None:
    """Take the entry of a file out of the configurations of a model that is loaded."""
    for part in model.modules():
        vars(getattr(part, "config", part)).pop(ENTRY, None)


def _ends_with(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}") if end else False

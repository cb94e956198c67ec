"""Says of the linear layers of a model, and of what is fused with them, which are accelerated."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from headwise.hf.accelerated.families import fast_class_of
from headwise.hf.accelerated.swap import base_of, is_fast, is_packed, refusal_of

_NOT_YET = "hf.accelerate(model) takes them"


def lines_about_layers(modules: list[nn.Module]) -> Iterator[str]:
    """Return a line for each kind of layer that there is."""
    kinds = {"linear layers": _is_linear, "other modules": _is_other}
    for name, belongs in kinds.items():
        found = [module for module in modules if belongs(module)]
        fast = sum(is_fast(module) for module in found)
        left = Counter(_why_left(module) for module in found if not is_fast(module))
        counts = [f"{fast} accelerated"] if fast or not left else []
        counts += [f"{count} left: {reason}" for reason, count in left.items()]
        if found:
            yield f"{name}: {', '.join(counts)}{_handed_over(found)}"


def _handed_over(modules: list[nn.Module]) -> str:
    """Say which calls accelerated modules hand to the code that they replace."""
    calls = (getattr(type(module), "hands_over", None) for module in modules if is_fast(module))
    kinds = [one for one in dict.fromkeys(calls) if one is not None]
    return "".join(f"; {one} run the code of their own class" for one in kinds)


def _is_linear(module: nn.Module) -> bool:
    """Say whether a module maps its last dimension by a matrix, as far as its class tells."""
    kind = own_class(module)
    if kind is NonDynamicallyQuantizableLinear:  # part of torch's attention layer
        return False
    if isinstance(module, nn.Linear) or kind.__name__ == "Conv1D":
        return True
    return "Linear" in kind.__name__ and hasattr(module, "in_features")


def _is_other(module: nn.Module) -> bool:
    """Say whether a module is no linear layer and no attention, and has a fast class."""
    kind = own_class(module)
    if _is_linear(module) or is_packed(module) or "ttention" in kind.__name__:
        return False
    fast = type(module) if is_fast(module) else fast_class_of(module)
    return fast is not None and (is_fast(module) or refusal_of(module, fast) is None)


def own_class(module: nn.Module) -> type:
    """Return the class that a module has when it is not accelerated."""
    return base_of(type(module)) if is_fast(module) else type(module)


def _why_left(module: Any) -> str:
    fast = fast_class_of(module)
    if fast is None:
        return f"{module._get_name()} computes in its own way"
    return refusal_of(module, fast) or _NOT_YET

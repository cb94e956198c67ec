"""Which file has the fast classes for which classes; nothing is imported that a model did not."""

import sys
from importlib import import_module
from typing import Any

from torch import nn

# The file of other libraries that defines the slow classes, and ours with the fast ones. Each of
# ours has a table ``SWAPS`` from exact classes to fast ones; see ``swap``.
_FAMILIES = {
    "torch.nn.modules.linear": "linear",
}


def fast_class_of(module: nn.Module) -> Any: 
    """Return the class that can stand in for that of a module; ``None`` where there is none."""
    kind = type(module)
    family = _FAMILIES.get(kind.__module__)
    if family is None or kind.__module__ not in sys.modules:
        return None
    swaps: dict[type, type] = import_module(f"{__package__}.{family}").SWAPS
    return swaps.get(kind)

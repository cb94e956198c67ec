"""Which file has the fast classes for which classes; nothing is imported that a model did not."""

import sys
from importlib import import_module
from typing import Any

from torch import nn

# The file of other libraries that defines the slow classes, and ours with the fast ones. Each of
# ours has a table ``SWAPS`` from exact classes to fast ones; see ``swap``.
_FAMILIES = {
    "torch.nn.modules.activation": "torch_attention",
    "torch.nn.modules.linear": "linear",
    "transformers.activations": "activations",
    "transformers.pytorch_utils": "conv1d",
    "transformers.models.big_bird.modeling_big_bird": "big_bird",
    "transformers.models.bigbird_pegasus.modeling_bigbird_pegasus": "bigbird_pegasus",
    "transformers.models.bloom.modeling_bloom": "bloom",
    "transformers.models.mpnet.modeling_mpnet": "mpnet",
    "transformers.models.longformer.modeling_longformer": "longformer",
    "transformers.models.led.modeling_led": "led",
}


def fast_class_of(module: nn.Module) -> Any:
    """Return the class that can stand in for that of a module; ``None`` where there is none."""
    kind = type(module)
    if kind.__module__ not in sys.modules:
        return None
    family = _FAMILIES.get(kind.__module__)
    fast = None if family is None else _file(family).SWAPS.get(kind)
    if fast is None and kind.__module__.startswith("transformers."):
        fast = _file("feed_forward").fast_feed_forward(kind)
    return fast


def _file(name: str) -> Any:
    return import_module(f"{__package__}.{name}")

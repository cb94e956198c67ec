"""Keeps torch's encoder layers out of the fused path that reads weights and calls no forward.

In ``eval()`` without gradients, ``nn.TransformerEncoder`` turns padded inputs into nested tensors
and ``nn.TransformerEncoderLayer`` computes attention itself, from the parameters of its
``self_attn``. Both look first whether one of these parameters answers for torch's functions
itself, and if so call the modules one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from typing_extensions import override


class UnfusedParameter(nn.Parameter):
    """A parameter like any other, but for torch's question whether a fused path may read it."""

    @classmethod
    @override
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def unfuse(parameter: nn.Parameter | None) -> None:
    """Make a plain parameter an unfused one; it stays the same object, in optimisers too."""
    if type(parameter) is nn.Parameter:
        parameter.__class__ = UnfusedParameter

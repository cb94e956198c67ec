"""A linear map, and an activation behind it."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import functional

from headwise import _native
from headwise._forks import alone_after_fork
from headwise.ops.projection.choice import (
    against_all,
    against_onednn,
    against_packing,
    against_rows,
)
from headwise.ops.projection.packed import packed, release

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}
# What oneDNN calls those that it can fuse, and the kind of it. Its relu turns NaN into 0.
_FUSED = {
    "none": ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
}


@alone_after_fork
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Return ``activation(x @ weight^T + bias)``, in inference by the fastest way.

    Few rows, and up to 16 of a small call, go through a kernel that reads every weight once; more,
    in float32 on processors that are not Intel's and in bfloat16, through oneDNN with a packed
    weight and the activation fused; everything else through ``torch.nn.functional.linear``. Which
    way is taken depends on dtype, sizes, processor and ``projections`` alone; they agree to
    rounding.

    Args:
        x: (…, inputs).
        weight: (outputs, inputs) in the same dtype.
        bias: (outputs,), or ``None``.
        activation: ``"none"``, ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.

    Returns:
        (…, outputs) in the dtype of ``x``; differentiable.

    Raises:
        ValueError: An unknown activation. Sizes and dtypes are refused by torch, in its words.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"linear: there is no activation {activation!r}\n"
            f"  hint: it is one of {', '.join(ACTIVATIONS)}"
        )
    if next(against_all(x, weight, bias), None) is None:
        bias = None if bias is None else bias.contiguous()
        if next(against_rows(x, weight), None) is None:
            return ACTIVATIONS[activation](_few_rows(x, weight, bias))
        if next(against_onednn(x, weight), None) is None:
            return _by_onednn(x, weight, bias, activation)
    elif weight.requires_grad and torch.is_grad_enabled() and not is_compiling():
        release(weight)
    return ACTIVATIONS[activation](functional.linear(x, weight, bias))


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    packs = next(against_packing(weight), None) is None
    ordered = packed(weight) if packs else weight
    name, kind = _FUSED.get(activation, _FUSED["none"])
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, ordered, bias, name, [], kind)
    return found if activation in _FUSED else ACTIVATIONS[activation](found)


def _few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    x = x.contiguous()
    output = x.new_empty(*x.shape[:-1], weight.shape[0])
    _native.kernels.linear_rows(x, weight, bias, output, torch.get_num_threads())
    return output

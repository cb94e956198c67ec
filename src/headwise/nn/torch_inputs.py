"""What torch's interface of attention takes as query, key and value."""

import torch
from torch import Tensor, nn

from headwise._checks import refuse_dtypes, refuse_shapes

_NAME = "TorchMultiheadAttention"


def check_inputs(module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse inputs that do not fit together, or not the parameters."""
    given: dict[str, Tensor] = {"query": query, "key": key, "value": value}
    widths = (module.embed_dim, module.kdim, module.vdim)
    axis = 0 if query.ndim == 2 or not module.batch_first else 1
    alike = query.ndim == key.ndim == value.ndim
    if (
        not alike
        or query.ndim not in (2, 3)
        or tuple(x.shape[-1] for x in given.values()) != widths
        or key.shape[:-1] != value.shape[:-1]
        or (query.ndim == 3 and query.shape[1 - axis] != key.shape[1 - axis])
    ):
        layout = "(batch, length, width)" if module.batch_first else "(length, batch, width)"
        raise refuse_shapes(
            _NAME,
            f"inputs must be {layout} or (length, width), with widths {widths}",
            "they have one batch size, and key and value one length; batch_first="
            f"{module.batch_first} says where the batch is",
            **given,
        )
    weight = module.out_proj.weight
    devices = {x.device for x in given.values()}
    if devices != {weight.device}:
        raise refuse_dtypes(
            _NAME,
            f"inputs must be on the device of the parameters, {weight.device}",
            "move the inputs or the module with .to(device)",
            **given,
        )
    dtypes = {x.dtype for x in given.values()}
    if dtypes != {weight.dtype} and not torch.is_autocast_enabled(weight.device.type):
        raise refuse_dtypes(
            _NAME,
            f"inputs must have the dtype of the parameters, {weight.dtype}",
            "convert them with .to(dtype), or use torch.autocast",
            **given,
        )

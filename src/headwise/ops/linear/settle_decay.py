"""Checks how fast tokens fade."""

from math import log

import torch
from torch import Tensor

from headwise._checks import refuse_dtypes, refuse_shapes
from headwise.ops.linear.looks import can_be_looked_at
from headwise.ops.linear.state import work_dtype


def check_decay_number(caller: str, decay: object) -> None:
    """Refuse a decay that is no number above 0 and at most 1."""
    if isinstance(decay, bool) or not isinstance(decay, int | float):
        raise TypeError(
            f"{caller}: decay must be a number or a tensor (kv_heads,), "
            f"got {type(decay).__name__}\n  hint: torch.tensor(…) makes one of a list"
        )
    if not 0.0 < decay <= 1.0:
        raise _refuse_decay(caller, str(decay))


def settle_decay(
    caller: str, decay: float | Tensor | None, causal: bool, key: Tensor
) -> Tensor | None:
    """Return the log of the decay of each head, (kv_heads,), in float32 or wider."""
    if decay is None:
        return None
    if not causal:
        raise ValueError(
            f"{caller}: decay is for causal=True, got causal=False\n"
            "  hint: it fades what lies behind a token; leave it out, or pass causal=True"
        )
    kv_heads, work = key.shape[-3], work_dtype(key)
    if not isinstance(decay, Tensor):
        check_decay_number(caller, decay)
        return torch.full((kv_heads,), log(decay), dtype=work, device=key.device)
    if not decay.is_floating_point() or decay.device != key.device:
        raise refuse_dtypes(
            caller,
            "decay must be floating-point and on the device of key",
            "convert it with .to(device, dtype)",
            key=key,
            decay=decay,
        )
    if decay.shape not in ((), (kv_heads,)):
        raise refuse_shapes(
            caller,
            "decay must hold one number for each key/value head",
            "give a tensor of shape (kv_heads,), or one number",
            key=key,
            decay=decay,
        )
    if can_be_looked_at(decay) and not bool(((decay > 0) & (decay <= 1)).all()):
        raise _refuse_decay(caller, str(decay.detach().tolist()))
    return decay.to(work).log().expand(kv_heads)


def _refuse_decay(caller: str, got: str) -> ValueError:
    return ValueError(
        f"{caller}: decay must lie above 0 and be at most 1, got {got}\n"
        "  hint: it is what is left of a token one step later; 1 or None forgets nothing"
    )

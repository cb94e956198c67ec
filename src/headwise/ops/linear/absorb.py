"""The state behind many keys at once, where nobody asks for the states in between."""

import torch
from torch import Tensor

from headwise.ops.linear.scales import whole_scale, without_nothing
from headwise.ops.linear.state import LinearState, work_dtype


def absorbed(
    key: Tensor,
    value: Tensor,
    *,
    log_gain: Tensor | None,
    log_decay: Tensor | None,
    state: LinearState | None,
) -> LinearState:
    """Return the state after all keys; arguments are those of ``sums.linear_sums``."""
    work, length = work_dtype(value), key.shape[-2]
    key, value = key.to(work), value.to(work)
    # In float64: logs grow with the length, and are subtracted from each other.
    exponents = None if log_gain is None else log_gain.double()
    kept = None if state is None else state.log_scale.double()
    if log_decay is not None:
        left = torch.arange(length - 1, -1, -1, device=key.device, dtype=torch.float64)
        faded = log_decay.double().unsqueeze(-1) * left
        exponents = faded if exponents is None else exponents + faded
        kept = None if kept is None else kept + length * log_decay.double()
    if log_gain is None or exponents is None:
        scale = torch.zeros(key.shape[:-2], dtype=work, device=key.device)
    else:
        scale = whole_scale(log_gain, log_decay, state)
        taken = without_nothing(scale).double()
        exponents = exponents - taken.unsqueeze(-1)
        kept = None if kept is None else kept - taken
    if exponents is not None:
        key = key * exponents.to(work).exp().unsqueeze(-1)
    sums, normaliser = key.transpose(-1, -2) @ value, key.sum(-2)
    if state is not None and kept is not None:
        share = kept.to(work).exp()
        sums = sums + state.sums * share[..., None, None]
        normaliser = normaliser + state.normaliser * share.unsqueeze(-1)
    return LinearState(sums, normaliser, scale)

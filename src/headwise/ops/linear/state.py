"""What linear attention carries from token to token."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import _register_namedtuple


class LinearState(NamedTuple):
    """All tokens up to now, in sums whose size does not grow with them.

    The sums are those of ``sums`` and ``normaliser`` times ``exp(log_scale)``. They are float32,
    and float64 for float64 inputs.

    It goes with a module through ``torch.export``, as an input or a result.

    Attributes:
        sums: (batch…, kv_heads, features, value_dim), sum of features times values.
        normaliser: (batch…, kv_heads, features), sum of features.
        log_scale: (batch…, kv_heads), natural log of the factor taken out, without a gradient; 0
            for feature maps that take none out, ``-inf`` before the first token of one that does.
    """

    sums: Tensor
    normaliser: Tensor
    log_scale: Tensor


# A graph that takes or returns one can be saved only if it has a name, and is loaded with its
# example inputs, among which it must be known to hold nothing but tensors.
_register_namedtuple(LinearState, serialized_type_name="headwise.ops.LinearState")
torch.serialization.add_safe_globals([LinearState])


class Sums(NamedTuple):
    """What every form computes, in float32 or wider.

    Attributes:
        values: (batch, q_heads, q_len, value_dim), not divided.
        normaliser: (batch, q_heads, q_len), the divisors.
        state: After the last key.
    """

    values: Tensor
    normaliser: Tensor
    state: LinearState


def work_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which sums are taken."""
    return torch.promote_types(tensor.dtype, torch.float32)


def empty_state(key: Tensor, value: Tensor, *, has_gain: bool) -> LinearState:
    """Return the state before the first token.

    Args:
        key: (batch…, kv_heads, kv_len, features).
        value: (batch…, kv_heads, kv_len, value_dim).
        has_gain: Whether the feature map takes factors out.
    """
    heads, width, work = key.shape[:-2], key.shape[-1], work_dtype(value)
    return LinearState(
        value.new_zeros((*heads, width, value.shape[-1]), dtype=work),
        value.new_zeros((*heads, width), dtype=work),
        value.new_full(heads, float("-inf") if has_gain else 0.0, dtype=work),
    )


def unscaled(state: LinearState) -> LinearState:
    """Return the same state with no factor taken out."""
    factor = state.log_scale.exp()
    return LinearState(
        state.sums * factor[..., None, None],
        state.normaliser * factor.unsqueeze(-1),
        torch.zeros_like(state.log_scale),
    )

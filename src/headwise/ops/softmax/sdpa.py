"""Softmax attention through torch's ``scaled_dot_product_attention``."""

import torch
from torch import Tensor

from headwise.ops.softmax.call import Call, Computed
from headwise.patterns.causal import Causal


def run(call: Call) -> Computed:
    """Return the output and no log-sum-exp; the call must have passed ``refusals.sdpa``."""
    assert call.slopes is None, "slopes are refused"
    assert call.distances is None, "distances are refused"
    causal = call.bias is None and _is_causal(call)
    # The operator itself: what stands under the name in torch.nn.functional may lead back here.
    output: Tensor = torch.ops.aten.scaled_dot_product_attention.default(
        call.query,
        call.key,
        call.value,
        attn_mask=None if causal else _mask(call),
        dropout_p=call.dropout_p,
        is_causal=causal,
        scale=call.scale,
        enable_gqa=bool(call.group > 1),
    )
    return Computed(output, None)


def _is_causal(call: Call) -> bool:
    """Say whether torch's own causal flag, which counts from the upper left, means the same."""
    # With a scale of 0 or less its own flag gives NaN.
    if call.pattern != Causal() or len(call.places) > 1 or call.scale <= 0.0:
        return False
    grid = call.places[0]
    return grid.q_offset == grid.kv_offset and grid.q_len <= grid.kv_len


def _mask(call: Call) -> Tensor | None:
    """Return the pattern as a boolean mask, or joined with the bias at the bias's precision."""
    allowed = call.allowed()
    if call.bias is None or allowed is None:
        return allowed if call.bias is None else call.bias
    return call.bias.masked_fill(~allowed, float("-inf"))

"""The definition of low-rank attention, in plain PyTorch; fast paths are tested against it."""

from contextlib import nullcontext

import torch
from torch import Tensor

from headwise.ops.lowrank.call import LowRankCall
from headwise.ops.lowrank.padding import cleared


def run(call: LowRankCall) -> Tensor:
    """Project keys and values along length, then weigh the projected values.

    Everything is computed in float32 or wider and spelled out, (batch, heads, q_len, rank). Padded
    keys and values are 0 before the projection, whatever stood there. Nothing is left of a sample
    in which all is padding: its projected values are 0.
    """
    query, (key, value) = call.query, cleared(call.key, call.value, call.padded)
    work = torch.promote_types(query.dtype, torch.float32)
    group = query.shape[1] // max(key.shape[1], 1)
    device = query.device.type
    with nullcontext() if device == "meta" else torch.autocast(device, enabled=False):
        keys = torch.matmul(call.key_projection.to(work), key.to(work))
        values = torch.matmul(call.value_projection.to(work), value.to(work))
        scores = query.to(work) @ keys.repeat_interleave(group, 1).mT * call.scale
        output = scores.softmax(-1) @ values.repeat_interleave(group, 1)
    return output.to(query.dtype)

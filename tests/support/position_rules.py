"""What position objects add to the scores, spelled out from the positions of a call."""

import torch
from torch import Tensor

from headwise.positions import Alibi, RelativeBias
from tests.support.settings import Setting


def gaps(setting: Setting) -> Tensor:
    """Return query position minus key position, (batch, q_len, kv_len)."""
    firsts = torch.tensor([setting.positions(sample) for sample in range(setting.batch)])
    queries = firsts[:, :1] + torch.arange(setting.q_len)
    keys = firsts[:, 1:] + torch.arange(setting.kv_len)
    return queries[:, :, None] - keys[:, None, :]


def added(bias: Alibi | RelativeBias, setting: Setting, numbers: Tensor) -> Tensor:
    """Return the bias of every pair, (batch, heads, q_len, kv_len), in the dtype of ``numbers``.

    Those are the slopes of an ``Alibi``, or the weight of a ``RelativeBias``.
    """
    apart = gaps(setting)
    if isinstance(bias, Alibi):
        return -numbers.view(-1, 1, 1) * apart[:, None].abs().to(numbers.dtype)
    return numbers[bias.buckets(apart)].permute(0, 3, 1, 2)

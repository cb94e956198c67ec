"""Nested tensors behind torch's interface of attention: samples of different lengths in one."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headwise.errors import ShapeError

_NAME = "TorchMultiheadAttention"


class Padded(NamedTuple):
    """The samples of a nested tensor side by side; ``padding`` is ``True`` behind their ends."""

    samples: Tensor
    padding: Tensor
    lengths: list[int]


def padded(
    query: Tensor, key: Tensor, value: Tensor, *masks: Tensor | None, batch_first: bool
) -> Padded:
    """Return the samples of an input that is query, key and value, or refuse other nested ones."""
    reason = None
    if not query is key is value:
        reason = "query, key and value must be one nested tensor"
    elif query.layout != torch.strided:
        reason = f"their layout must be torch.strided, got {query.layout}"
    elif not batch_first:
        reason = "they have their samples first, which needs batch_first=True"
    elif any(mask is not None for mask in masks):
        reason = "they say themselves what is padding, and take no masks beside them"
    elif query.dim() != 3 or query.size(0) == 0:
        reason = "they hold one or more samples of (length, embed_dim)"
    if reason is not None:
        raise ShapeError(
            f"{_NAME}: nested tensors are not taken here: {reason}\n"
            "  hint: pass padded tensors with key_padding_mask"
        )
    samples = list(query.unbind())
    lengths = [len(sample) for sample in samples]
    longest = torch.arange(max(lengths), device=query.device)
    ends = torch.tensor(lengths, device=query.device).unsqueeze(1)
    return Padded(pad_sequence(samples, batch_first=True), longest >= ends, lengths)


def nested(output: Tensor, lengths: list[int]) -> Tensor:
    """Return the samples without what stands behind their ends."""
    samples = [sample[:length] for sample, length in zip(output, lengths, strict=True)]
    return torch.nested.as_nested_tensor(samples, layout=torch.strided)

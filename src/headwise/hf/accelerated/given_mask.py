"""Reads the masks of models with attention of their own, once for each forward pass.

Such models spell out the mask that all their layers share, and do not say what it means. Here it
is compared with what it usually is, padding with or without causality, and only an equal one is
taken for that; any other one is taken as it is.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from headwise.hf.masks import from_tensor
from headwise.hf.pattern_mask import PatternMask
from headwise.patterns import Causal, Full, KeyMask, Pattern


class _Read(NamedTuple):
    """What a mask means, and the version of it that was read."""

    mask: Tensor
    version: int


_known: Any = WeakTensorKeyDictionary()


@torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
    reason="what a mask means depends on its numbers"
)
def read_mask(given: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask that the attention of ``headwise.hf`` need not spell out again.

    Args:
        given: Numbers that the model adds to the scores.
        dtype: What the model computes in.

    Returns:
        A ``PatternMask``; ``given`` itself where it says more than who may attend to whom, or
        follows no rule that is known here.
    """
    if given.is_inference():
        return _read(given, dtype)
    known: _Read | None = _known.get(given)
    if known is None or known.version != given._version:
        known = _Read(_read(given, dtype), given._version)
        if known.mask is not given:
            _known[given] = known
    return known.mask


def _read(given: Tensor, dtype: torch.dtype) -> Tensor:
    if given.ndim != 4 or given.shape[1] != 1 or not given.numel():
        return given
    closed, bias = from_tensor(given, dtype)
    if bias is not None:
        return given
    found = (Full(), None) if closed is None else _rule(given > torch.finfo(given.dtype).min / 2)
    if found is None:
        return given
    batch, _, q_len, kv_len = given.shape
    pattern, q_offset = found
    q_offset = kv_len - q_len if q_offset is None else q_offset
    return PatternMask(pattern, (batch, q_len, kv_len), q_offset, 0, given.device, None, "")


def _rule(allowed: Tensor) -> tuple[Pattern, int | None] | None:
    """Return the pattern of a mask and where its queries stand, if that counts."""
    _, _, q_len, kv_len = allowed.shape
    last = allowed[:, 0, -1]
    keys: Pattern = Full() if bool(last.all()) else KeyMask(last)
    real = last[:, None, None]
    if torch.equal(allowed, real.expand_as(allowed)):
        return keys, None
    # The last query stands beside the last key; in a cache with room left, before it.
    ends = kv_len - last.flip(-1).int().argmax(-1)
    for q_offset in dict.fromkeys((kv_len - q_len, int(ends.max()) - q_len)):
        causal = Causal().dense(q_len, kv_len, q_offset, 0).to(allowed.device)
        if torch.equal(allowed, causal & real):
            return keys & Causal(), q_offset
    return None

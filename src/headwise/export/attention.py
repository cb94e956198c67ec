"""The operator of softmax attention in operations that ONNX has."""

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import torch
from torch import SymInt, Tensor

from headwise.errors import BackendRefused, PatternError
from headwise.export.pairs import Place, allowed
from headwise.patterns import Causal, Full, Pattern
from headwise.patterns.spelling import read


class _Scores(NamedTuple):
    """What is done to scores: in this order a factor, a cap, numbers added, pairs left out."""

    scale: float
    softcap: float
    bias: Tensor | None
    pairs: Tensor | None
    sinks: Tensor | None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *rest: Any,  # noqa: ANN401
    with_lse: bool = True,
) -> tuple[Tensor, Tensor]:
    """Do what ``headwise::attend`` does.

    Args:
        query: (batch, heads, q_len, head_dim).
        key: (batch, kv_heads, kv_len, head_dim).
        value: (batch, kv_heads, kv_len, value_dim).
        rest: The operator's other arguments, in its order.
        with_lse: Whether the log-sum-exp is asked for; otherwise that result holds zeros.

    Returns:
        Output and log-sum-exp, in the operator's form.

    Raises:
        BackendRefused: Dropout, which a file for inference has no use for.
        PatternError: A pattern that holds for one length only, where the length is open.
    """
    bias, slopes, table, sinks, _, *rules = rest
    tensors, pattern, numbers, q_offsets, kv_offsets, lowest, scale, softcap, dropout_p = rules
    if dropout_p > 0.0:
        raise BackendRefused(
            "headwise.export: an ONNX file cannot draw this dropout again, got "
            f"dropout_p={dropout_p}\n  hint: export model.eval()"
        )
    sizes = (query.shape[2], key.shape[2])
    place = Place.of(query.shape[0], sizes, q_offsets, kv_offsets, query.device)
    rule = None if pattern is None else _read(pattern, numbers or (), tensors or ())
    gap = place.query - place.key
    if slopes is not None:
        bias = -slopes.view(-1, 1, 1) * gap.abs()
    elif table is not None:
        found = table[:, (gap - lowest).flatten()].view(-1, *gap.shape)
        bias = found.squeeze(2).transpose(0, 1)
    causal = type(rule) is Causal and _side_by_side(q_offsets, kv_offsets)
    given = query.float(), key.float(), value.float()
    pairs = None
    if rule is not None and type(rule) is not Full:
        pairs = allowed(rule, place)
        # Runtimes take masks that are not spread over samples and heads, but no others.
        pairs = pairs.expand(-1, -1, *sizes)
    if bias is not None:
        bias, pairs = _opened(bias.float(), pairs)
    if pairs is not None and not (causal and bias is None and _surely_equal(*sizes)):
        given = _without_unseen(*given, pairs.expand(-1, -1, *sizes))
    scores = _Scores(scale, softcap, bias, pairs, sinks)
    # Versions of the standard disagree on whether a cap comes before or after a mask.
    capped = softcap > 0.0 and (pairs is not None or bias is not None)
    by_operator = not capped and sinks is None
    lse = torch.zeros_like(given[0][..., 0])
    if with_lse or not by_operator:
        output, lse = _spelled_out(*given, scores)
    if by_operator:
        output = _by_operator(*given, scores, causal and bias is None)
    if pairs is not None and not causal:
        output = torch.where(pairs.any(-1, keepdim=True), output, 0.0)
    return output.to(query.dtype), torch.stack([lse, torch.zeros_like(lse)], -1)


def _read(pattern: str, numbers: Sequence[int], tensors: Sequence[Tensor]) -> Pattern:
    for number in numbers:
        if isinstance(number, SymInt):
            raise PatternError(
                "headwise.export: a pattern was made with a number that this graph leaves open, "
                f"{number}\n  pattern  {pattern}\n"
                "  hint: make it of a tensor, as in Lengths(lengths), or export at one length"
            )
    return read(pattern, numbers, tensors)


def _surely_equal(one: int | SymInt, other: int | SymInt) -> bool:
    """Say whether two lengths are one, whatever the open ones will be."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(one == other)


def _side_by_side(q_offsets: Sequence[int], kv_offsets: Sequence[int]) -> bool:
    """Say whether the first query stands beside the first key in every sample."""
    starts = (*q_offsets, *kv_offsets)
    return not any(isinstance(start, SymInt) for start in starts) and len(set(starts)) == 1


def _without_unseen(
    query: Tensor, key: Tensor, value: Tensor, pairs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Take the numbers out of keys that no query sees: NaN in padding would reach every row."""
    seen = pairs.any(2)
    if not _is_one(seen.shape[1]):
        groups = query.shape[1] // key.shape[1]
        seen = _grouped(seen, groups).any(2)
    seen = seen.unsqueeze(-1)
    return query, torch.where(seen, key, 0.0), torch.where(seen, value, 0.0)


def _opened(bias: Tensor, pairs: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the bias with nothing infinite in it, and the pairs that it leaves."""
    closed = bias == -inf
    left = ~closed if pairs is None else pairs & ~closed
    return bias.masked_fill(closed, 0.0), left


def _by_operator(
    query: Tensor, key: Tensor, value: Tensor, scores: _Scores, causal: bool
) -> Tensor:
    """Return what the standard operator gives; rows that see nothing are left to the caller."""
    if scores.scale <= 0.0:
        # The operator takes the root of its scale.
        query, scores = query * scores.scale, scores._replace(scale=1.0)
    attributes: dict[str, Any] = {"scale": scores.scale}
    mask = scores.pairs
    if causal:
        attributes["is_causal"], mask = 1, None
    elif scores.bias is not None:
        assert mask is not None
        # Runtimes take the lowest number for a closed pair, which a row of nothing else is not.
        lowest = torch.finfo(query.dtype).min / 2
        mask = torch.where(mask, scores.bias.clamp(min=lowest), -inf).expand(
            -1, -1, query.shape[2], key.shape[2]
        )
    if scores.softcap > 0.0:
        attributes["softcap"] = scores.softcap
    return torch.onnx.ops.symbolic(
        "Attention",
        (query, key, value) if mask is None else (query, key, value, mask),
        attributes,
        dtype=query.dtype,
        shape=(*query.shape[:3], value.shape[3]),
        version=23,
    )


def _spelled_out(
    query: Tensor, key: Tensor, value: Tensor, scores: _Scores
) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp, (batch, heads, q_len), by way of every weight."""
    batch, heads, q_len, _ = query.shape
    kv_heads, kv_len = key.shape[1], key.shape[2]
    found = (_grouped(query, heads // kv_heads) @ key.unsqueeze(2).transpose(-1, -2)).flatten(
        1, 2
    ) * scores.scale
    if scores.softcap > 0.0:
        found = scores.softcap * torch.tanh(found / scores.softcap)
    if scores.bias is not None:
        found = found + scores.bias
    if scores.pairs is not None:
        found = torch.where(scores.pairs, found, -inf)
    if scores.sinks is not None:
        sinks = scores.sinks.float().view(1, heads, 1, 1).expand(batch, heads, q_len, 1)
        found = torch.cat([found, sinks], -1)
    top = found.amax(-1, keepdim=True)
    top = torch.where(top == -inf, 0.0, top)
    shares = (found - top).exp()
    total = shares.sum(-1, keepdim=True)
    weights = (shares / torch.where(total == 0.0, 1.0, total))[..., :kv_len]
    mixed = _grouped(weights, heads // kv_heads) @ value.unsqueeze(2)
    lse = total.log() + top
    if scores.pairs is not None:
        lse = torch.where(scores.pairs.any(-1, keepdim=True), lse, -inf)
    return mixed.flatten(1, 2), lse.squeeze(-1)


def _grouped(heads: Tensor, group: int) -> Tensor:
    return heads.view(heads.shape[0], -1, group, *heads.shape[2:])


def _is_one(size: int) -> bool:
    return not isinstance(size, SymInt) and size == 1

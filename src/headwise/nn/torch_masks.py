"""Torch's attention masks, ``True`` = ignore or numbers added to scores, as pattern and bias."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from headwise.errors import DtypeError, PatternError
from headwise.patterns import Causal, Dense, KeyMask, Pattern
from headwise.patterns.content import is_traced

_CALLER = "TorchMultiheadAttention"


class Sizes(NamedTuple):
    """Sizes of one call; ``extra`` keys behind those of the call are visible to every query.

    ``batch`` is 1 for inputs that are ``one`` sample, whose padding mask has no such axis either.
    """

    one: bool
    batch: int
    heads: int
    q_len: int
    kv_len: int
    extra: int


class Masks(NamedTuple):
    """What the masks of a call amount to."""

    pattern: Pattern | None
    bias: Tensor | None


class _Mask(NamedTuple):
    """One mask: which pairs may meet, or what is added to their scores."""

    allowed: Tensor | None
    bias: Tensor | None


def read_masks(
    key_padding_mask: Tensor | None, attn_mask: Tensor | None, is_causal: bool, sizes: Sizes
) -> Masks:
    """Return who may attend to whom, and what is added to the scores.

    Numbers that are all 0 or ``-inf`` are a pattern, unless they want a gradient or cannot be
    looked at. ``is_causal`` is a hint: it spares spelling out a mask that is causal, and changes
    nothing where the mask is another.
    """
    pattern: Pattern | None = None
    bias: Tensor | None = None
    if attn_mask is None:
        _check_hint(is_causal)
    else:
        _check(attn_mask, "attn_mask", _shapes_of_attn_mask(sizes))
        pattern, bias = _pairs(_read(attn_mask, sizes.extra), is_causal, sizes)
    if key_padding_mask is not None:
        _check(key_padding_mask, "key_padding_mask", _shapes_of_padding(sizes))
        keys_of = key_padding_mask.unsqueeze(0) if sizes.one else key_padding_mask
        allowed, added = _read(keys_of, sizes.extra)
        if allowed is not None:
            keys = KeyMask(allowed)
            pattern = keys if pattern is None else pattern & keys
        if added is not None:
            added = added[:, None, None]
            bias = added if bias is None else bias + added
    return Masks(pattern, bias)


def _pairs(mask: _Mask, is_causal: bool, sizes: Sizes) -> Masks:
    """Return a mask over queries and keys; one for every head of every sample has three axes."""
    allowed, bias = (
        t if t is None or t.ndim == 2 else t.view(sizes.batch, sizes.heads, *t.shape[1:])
        for t in mask
    )
    if allowed is None:
        return Masks(None, bias)
    if _hint_holds(is_causal, allowed):
        return Masks(Causal(), bias)
    return Masks(Dense(allowed), bias)


def _hint_holds(is_causal: bool, allowed: Tensor) -> bool:
    """Say whether each query sees what comes up to its own number and nothing else, as hinted.

    A compiler may not know the hint yet, which is then not read.
    """
    if allowed.ndim != 2 or is_traced(allowed):
        return False
    return is_causal and torch.equal(allowed, torch.ones_like(allowed).tril())


def _read(mask: Tensor, extra: int) -> _Mask:
    """Return one mask with room for the extra keys, which are never ignored."""
    if extra:
        mask = functional.pad(mask, (0, extra))
    if mask.dtype == torch.bool:
        return _Mask(~mask, None)
    if not mask.requires_grad and not is_traced(mask):
        open_, closed = mask == 0, mask == float("-inf")
        if bool((open_ | closed).all()):
            return _Mask(open_, None)
    return _Mask(None, mask)


def _shapes_of_attn_mask(sizes: Sizes) -> list[tuple[int, ...]]:
    pairs = (sizes.q_len, sizes.kv_len)
    return [pairs, (sizes.batch * sizes.heads, *pairs)]


def _shapes_of_padding(sizes: Sizes) -> list[tuple[int, ...]]:
    return [(sizes.kv_len,) if sizes.one else (sizes.batch, sizes.kv_len)]


def _check_hint(is_causal: bool) -> None:
    """Refuse a hint about a mask that is missing."""
    if is_causal:
        raise RuntimeError(
            f"{_CALLER}: is_causal is a hint about attn_mask, and attn_mask is missing\n"
            "  hint: pass the causal mask too, as from "
            "nn.Transformer.generate_square_subsequent_mask; headwise.MultiHeadAttention needs "
            "none, with pattern=headwise.Causal()"
        )


def _check(mask: Tensor, name: str, shapes: list[tuple[int, ...]]) -> None:
    if not isinstance(mask, Tensor):
        raise DtypeError(f"{_CALLER}: {name} must be a tensor, got {type(mask).__name__}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise DtypeError(
            f"{_CALLER}: {name} must be bool, True = ignore, or floating-point numbers that are "
            f"added to the scores, got {mask.dtype}\n"
            "  hint: convert zeros and ones with .bool(), and mind that True means ignore"
        )
    if tuple(mask.shape) not in shapes:
        wanted = " or ".join(str(shape) for shape in shapes)
        raise PatternError(
            f"{_CALLER}: {name} must be {wanted}, got {tuple(mask.shape)}\n"
            "  hint: key_padding_mask is (batch, kv_len), or (kv_len,) for one sample; attn_mask "
            "is (q_len, kv_len), or (batch * num_heads, q_len, kv_len)"
        )

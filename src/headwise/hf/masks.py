"""Masks as transformers makes them, turned into patterns.

The only file that knows their polarity and the meaning of their windows. A mask there is a
function of (sample, head, query position, key position) built from closures, or a tensor: boolean
with ``True`` = may attend, or numbers where about ``finfo.min`` means "may not attend".

============================================  ==================================================
transformers                                  here
============================================  ==================================================
causal                                        ``Causal()``
bidirectional                                 ``Full()``
sliding window of ``n``: key > query - n      ``Window(n - 1, None)``
bidirectional window of ``n``                 ``Window(n, n)``
chunks of ``n``, counted past the padding     ``Documents``, one per chunk
blocks, packed sequences                      ``Documents``; negative numbers belong to no block
padding (batch, keys)                         ``KeyMask``
and, or                                       ``&``, ``|``
anything else                                 ``Dense``, and a report says so
============================================  ==================================================
"""

from collections.abc import Callable
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import SymInt, Tensor
from transformers import masking_utils as theirs

from headwise.errors import ShapeError
from headwise.hf.asked import Asked
from headwise.patterns import (
    Both,
    Causal,
    Dense,
    Documents,
    Either,
    Full,
    KeyMask,
    Pattern,
    Window,
)
from headwise.patterns.content import is_traced
from headwise.patterns.grid import Grid
from headwise.patterns.lowering import sees_all

MaskFunction = Callable[..., Any]


def from_tensor(given: Tensor, dtype: torch.dtype) -> tuple[Pattern | None, Tensor | None]:
    """Read a mask tensor that a user or a model made; return a pattern and a bias.

    In a mask of numbers, whatever lies below half of the most negative number of its dtype means
    "may not attend"; other numbers are added to the scores.

    Args:
        given: (batch, heads, q_len, kv_len), or three dimensions of which the first is 1.
        dtype: What the model computes in.

    Raises:
        ShapeError: Another number of dimensions.
    """
    if given.ndim == 3 and given.shape[0] == 1:
        given = given.unsqueeze(0)
    if given.ndim != 4:
        raise ShapeError(
            "attn_implementation='headwise': attention_mask must be (batch, heads, q_len, kv_len) "
            f"where it reaches the attention, got {tuple(given.shape)} {given.dtype}\n"
            "  hint: give the model a 2-D mask of its tokens, or one with all four dimensions"
        )
    counts = not _is_recorded()
    if not given.is_floating_point():
        return (None if counts and bool(given.all()) else Dense(given)), None
    closed = given.detach() <= torch.finfo(given.dtype).min / 2
    numbers = given.masked_fill(closed, 0.0)
    pattern = None if counts and not bool(closed.any()) else Dense(~closed)
    plain = counts and not given.requires_grad and not bool(numbers.any())
    return pattern, None if plain else numbers.to(torch.promote_types(dtype, numbers.dtype))


def unmasked(causal: bool, q_len: int, kv_len: int, window: int | None) -> Pattern:
    """Return the pattern of a call without a mask.

    Args:
        causal: Whether the module is causal. One query is the last token and sees all.
        q_len: Number of queries.
        kv_len: Number of keys.
        window: Keys that a query sees on its left, and unless causal on its right, itself
            included; ``None`` = all.

    Raises:
        ShapeError: Causal with unequal numbers, so that nobody knows where the queries stand.
    """
    causal = causal and q_len > 1
    if causal and q_len != kv_len:
        raise ShapeError(
            "attn_implementation='headwise': a causal module without a mask must have as many "
            f"keys as queries, got {kv_len} and {q_len}\n"
            "  hint: give a mask, or is_causal=False where every query may see every key"
        )
    pattern: Pattern = Causal() if causal else Full()
    if window is None or (not isinstance(kv_len, SymInt) and window > kv_len):
        return pattern
    return pattern & Window(window - 1, window - 1)


def padding(attention_mask: Tensor, asked: Asked) -> Pattern:
    """Cut or extend a mask over all tokens seen to the keys of the call."""
    if attention_mask.ndim != 2:
        raise ShapeError(
            "attn_implementation='headwise': attention_mask must be (batch, tokens) or "
            f"(batch, heads, q_len, kv_len), got {tuple(attention_mask.shape)}\n"
            "  hint: 1 marks a real token, 0 padding"
        )
    real = attention_mask.bool()[:, asked.kv_offset : asked.kv_offset + asked.kv_len]
    missing = asked.kv_len - real.shape[1]
    if missing:
        real = torch.nn.functional.pad(real, (0, missing))
    unknown = is_traced(real) or _is_recorded()
    return KeyMask(real) if unknown or not bool(real.all()) else Full()


def _is_recorded() -> bool:
    """Say whether torch.jit records the call, which will stand for masks of other numbers, too."""
    return torch._C._get_tracing_state() is not None


def needed(pattern: Pattern, asked: Asked) -> Pattern:
    """Leave out parts that allow every pair of this call, unless it stands for other lengths."""
    if isinstance(asked.q_len, SymInt) or isinstance(asked.kv_len, SymInt):
        return pattern
    if isinstance(pattern, Both):
        first, second = needed(pattern.first, asked), needed(pattern.second, asked)
        return (first & second).simplified()
    if not pattern.shift_invariant or not asked.q_len:
        return pattern
    grid = Grid(asked.q_len, asked.kv_len, asked.q_offset, asked.kv_offset)
    return Full() if sees_all(pattern, grid) else pattern


def pattern_of(function: MaskFunction, asked: Asked, packed: Tensor | None = None) -> Pattern:
    """Translate one mask function; ``packed`` numbers the sequences it is limited to."""
    reader = _readers().get(getattr(function, "__code__", None))
    if reader is not None:
        found = reader(_cells(function), asked, packed)
        if found is not None:
            return found
    return _spelled(function, asked)


def _cells(function: MaskFunction) -> dict[str, Any]:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return dict(zip(function.__code__.co_freevars, cells, strict=True))


def _spelled(function: MaskFunction, asked: Asked) -> Pattern:
    """Evaluate a mask function that is not known, as transformers does it."""
    home = getattr(function, "__module__", type(function).__module__)
    asked.unknown.append(f"{home}.{getattr(function, '__qualname__', type(function).__name__)}")
    allowed = theirs.sdpa_mask(
        batch_size=asked.batch,
        q_length=asked.q_len,
        kv_length=asked.kv_len,
        q_offset=asked.q_offset,
        kv_offset=asked.kv_offset,
        mask_function=function,
        allow_is_causal_skip=False,
        use_vmap=asked.use_vmap,
        device=asked.device,
    )
    return Dense(allowed)


Reader = Callable[[dict[str, Any], Asked, Tensor | None], Pattern | None]


@cache
def _readers() -> dict[CodeType | None, Reader]:
    """Return what reads each mask function of transformers, by the code of its closure."""

    def inner(factory: MaskFunction) -> CodeType:
        parts = [part for part in factory.__code__.co_consts if isinstance(part, CodeType)]
        return next(part for part in parts if part.co_argcount == 4)

    return {
        theirs.causal_mask_function.__code__: lambda *_: Causal(),
        theirs.bidirectional_mask_function.__code__: lambda *_: Full(),
        inner(theirs.sliding_window_overlay): _sliding,
        inner(theirs.sliding_window_bidirectional_overlay): _sliding_both_ways,
        inner(theirs.chunked_overlay): _chunks,
        inner(theirs.blockwise_overlay): _blocks,
        inner(theirs.packed_sequence_mask_function): _packed,
        inner(theirs.padding_mask_function): _padded,
        inner(theirs.remap_positions_for_packed_sequence): _remapped,
        inner(theirs.and_masks): _all_of,
        inner(theirs.or_masks): _any_of,
    }


def _sliding(cells: dict[str, Any], asked: Asked, packed: Tensor | None) -> Pattern | None:
    window = int(cells["sliding_window"])
    return Window(window - 1, None) if window > 0 else None


def _sliding_both_ways(
    cells: dict[str, Any], asked: Asked, packed: Tensor | None
) -> Pattern | None:
    window = int(cells["sliding_window"])
    return Window(window, window) if window >= 0 else None


def _chunks(cells: dict[str, Any], asked: Asked, packed: Tensor | None) -> Pattern:
    padding = torch.as_tensor(cells["left_padding"]).to("cpu").reshape(-1, 1)
    chunks = (torch.arange(asked.end) - padding).div(cells["chunk_size"], rounding_mode="floor")
    return Documents(chunks - chunks.min())


def _blocks(cells: dict[str, Any], asked: Asked, packed: Tensor | None) -> Pattern | None:
    ids = cells["block_sequence_ids"]
    return Documents(ids) if ids.shape[-1] >= asked.end else None


def _packed(cells: dict[str, Any], asked: Asked, packed: Tensor | None) -> Pattern | None:
    ids = cells["packed_sequence_mask"]
    return Documents(ids) if ids.shape[-1] >= asked.end and not bool((ids < 0).any()) else None


def _padded(cells: dict[str, Any], asked: Asked, packed: Tensor | None) -> Pattern:
    return padding(cells["padding_mask"], asked)


def _remapped(cells: dict[str, Any], asked: Asked, packed: Tensor | None) -> Pattern | None:
    """Distances inside one packed sequence are the same before and after renumbering it."""
    if packed is None:
        return None
    steps = cells["position_ids"].diff(dim=-1)
    if not bool(((steps == 1) | (packed.diff(dim=-1) != 0)).all()):
        return None
    pattern = pattern_of(cells["mask_function"], asked, None)
    return pattern if pattern.shift_invariant else None


def _all_of(cells: dict[str, Any], asked: Asked, packed: Tensor | None) -> Pattern:
    parts: tuple[MaskFunction, ...] = cells["mask_functions"]
    for part in parts:
        if _readers().get(getattr(part, "__code__", None)) is _packed:
            packed = _cells(part)["packed_sequence_mask"]
    pattern: Pattern = Full()
    for part in parts:
        pattern = Both(pattern, pattern_of(part, asked, packed)).simplified()
    return pattern


def _any_of(cells: dict[str, Any], asked: Asked, packed: Tensor | None) -> Pattern:
    first, *others = (pattern_of(part, asked, packed) for part in cells["mask_functions"])
    pattern = first
    for other in others:
        pattern = Either(pattern, other).simplified()
    return pattern

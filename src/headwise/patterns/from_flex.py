"""Mask functions and block masks of torch's FlexAttention as patterns."""

from collections.abc import Callable
from ctypes import string_at
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from headwise.errors import PatternError
from headwise.patterns.block_kinds import FULL, PARTIAL
from headwise.patterns.blocks import check_count
from headwise.patterns.chosen_tiles import Tiles

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_NONE, _ALL, _SHAPES = 0, 1, 2

# Pairs of queries and keys that are asked for at a time.
_PAIRS = 1 << 20


class _Blocks(NamedTuple):
    """A mask function, the lengths it speaks of, and the sides of a block."""

    allows: MaskMod
    lengths: tuple[int, int]
    sides: tuple[int, int]
    device: torch.device


def from_mask_mod(
    mask_mod: MaskMod,
    batch: int | None,
    heads: int | None,
    q_len: int,
    kv_len: int,
    block: int = 128,
    device: torch.device | str = "cpu",
) -> Tiles:
    """Read a mask function of FlexAttention for one call.

    The function is asked for every pair, a few blocks at a time. Blocks in which it allows all or
    nothing are kept as such, equal ones among the others once.

    Args:
        mask_mod: A function of (sample, head, query index, key index) that is ``True`` where the
            pair may meet, as ``create_block_mask`` takes it.
        batch: Samples that differ; ``None`` = all are alike, and sample 0 speaks for them.
        heads: Query heads that differ, likewise.
        q_len: Number of queries; the pattern serves calls of this size.
        kv_len: Number of keys.
        block: Queries, and keys, of a block.
        device: Where the tensors lie that the function reads.

    Raises:
        PatternError: No such function, or one whose answers are no booleans.

    Example:
        >>> print(from_mask_mod(lambda b, h, q, k: k <= q, None, None, 3, 3, block=2).draw(3, 3))
        ■··
        ■■·
        ■■■
    """
    _check_function(mask_mod)
    for name, size in (("batch", batch), ("heads", heads)):
        if size is not None:
            check_count("from_mask_mod", name, size, 1, "None takes them to be alike")
    check_count("from_mask_mod", "q_len", q_len, 0, "give the number of queries of the call")
    check_count("from_mask_mod", "kv_len", kv_len, 0, "give the number of keys of the call")
    check_count("from_mask_mod", "block", block, 1, "128 is usual")
    told = (1 if batch is None else batch, 1 if heads is None else heads)
    kinds = torch.full((*told, -(-q_len // block), -(-kv_len // block)), PARTIAL, device="cpu")
    sides = (min(block, max(q_len, 1)), min(block, max(kv_len, 1)))
    blocks = _Blocks(mask_mod, (q_len, kv_len), sides, torch.device(device))
    return _tiles("from_mask_mod", kinds, blocks, batch is None and heads is None)


def from_block_mask(block_mask: "BlockMask") -> Tiles:
    """Read a block mask of FlexAttention.

    Only blocks that it calls partial are asked for pair by pair. A mask of one sample and one head
    holds for all; where its function tells them apart none the less, the first one speaks for all.

    Args:
        block_mask: A ``BlockMask`` whose blocks fit its lengths.

    Returns:
        A pattern for calls with the lengths of the mask.

    Raises:
        PatternError: Something else, or a mask that was cut to other blocks than its lengths have.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if not isinstance(block_mask, BlockMask):
        raise PatternError(
            f"from_block_mask: takes a BlockMask, got {type(block_mask).__name__}\n"
            "  hint: a function of (b, h, q_idx, kv_idx) goes into from_mask_mod, "
            "a boolean tensor into Dense"
        )
    q_len, kv_len = block_mask.seq_lengths
    rows, columns = block_mask.BLOCK_SIZE
    wanted = (-(-q_len // rows), -(-kv_len // columns))
    held = tuple(block_mask.kv_indices.shape[-2:])
    if held != wanted:
        raise PatternError(
            f"from_block_mask: {q_len} queries and {kv_len} keys make {wanted[0]} × {wanted[1]} "
            f"blocks of {rows} × {columns}, got {held[0]} × {held[1]}\n"
            "  hint: make the mask anew for the lengths of the call, with create_block_mask"
        )
    kinds = PARTIAL * _listed(block_mask.kv_num_blocks, block_mask.kv_indices)
    if block_mask.full_kv_num_blocks is not None:
        full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
        kinds = torch.where(full > 0, FULL, kinds)
    # A block may be far larger than the call.
    sides = (min(rows, max(q_len, 1)), min(columns, max(kv_len, 1)))
    device = block_mask.kv_num_blocks.device
    blocks = _Blocks(block_mask.mask_mod, (q_len, kv_len), sides, device)
    return _tiles("from_block_mask", kinds, blocks, kinds.shape[:2] == (1, 1))


def _listed(counts: Tensor, numbers: Tensor | None) -> Tensor:
    """Return 1 at the blocks that are listed, (samples, heads, query blocks, key blocks)."""
    assert numbers is not None, "torch keeps counts and numbers together"
    numbers = numbers.to("cpu", torch.int64)
    used = torch.arange(numbers.shape[-1], device="cpu") < counts.to("cpu").unsqueeze(-1)
    columns = numbers.shape[-1]
    found = torch.zeros(*numbers.shape[:-1], columns + 1, dtype=torch.int64, device="cpu")
    found.scatter_(-1, torch.where(used, numbers, columns), 1)
    return found[(None,) * (4 - found.ndim)][..., :columns]


def _tiles(caller: str, kinds: Tensor, blocks: _Blocks, alike: bool) -> Tiles:
    """Turn the kinds of blocks into tiles, and ask for the pairs of partial ones."""
    tiles = torch.where(kinds == FULL, _ALL, _NONE)
    places = (kinds == PARTIAL).nonzero()
    shapes: list[Tensor] = []
    numbers: dict[bytes, int] = {}
    rows, columns = blocks.sides
    parts = torch.split(places, max(_PAIRS // (rows * columns), 1)) if len(places) else ()
    for part in parts:
        allowed, real = _asked(caller, blocks, part)
        held, size = allowed.sum((1, 2)), real.sum((1, 2))
        for place, pairs, some, every in zip(
            part.tolist(), allowed, held.tolist(), size.tolist(), strict=True
        ):
            kind = _NONE if not some else _ALL
            if 0 < some < every:
                key = string_at(pairs.data_ptr(), pairs.nbytes)
                kind = _SHAPES + numbers.setdefault(key, len(shapes))
                if kind == _SHAPES + len(shapes):
                    shapes.append(pairs.clone())
            tiles[tuple(place)] = kind
    return Tiles(
        tiles[0, 0] if alike else tiles,
        blocks.sides,
        torch.stack(shapes) if shapes else None,
        blocks.lengths,
    )


def _asked(caller: str, blocks: _Blocks, part: Tensor) -> tuple[Tensor, Tensor]:
    """Ask for the pairs of the blocks at (sample, head, row, column).

    Returns:
        Which pairs may meet, and which lie inside the call, (blocks, queries, keys) each.
    """
    from torch.nn.attention.flex_attention import create_mask

    rows, columns = blocks.sides
    sample, head, row, column = part.to(blocks.device).unbind(1)
    last_query, last_key = (length - 1 for length in blocks.lengths)

    def pair(n: Tensor, _: Tensor, q: Tensor, k: Tensor) -> Tensor:
        query = (row[n] * rows + q).clamp(max=last_query)
        key = (column[n] * columns + k).clamp(max=last_key)
        return blocks.allows(sample[n], head[n], query, key)

    found: Any = create_mask(pair, len(part), 1, rows, columns, blocks.device)
    if found.dtype != torch.bool:
        raise PatternError(
            f"{caller}: mask_mod must answer with booleans, got {found.dtype}\n"
            "  hint: True = the pair may meet; numbers to add to the scores are a bias"
        )
    queries = part[:, 2].view(-1, 1, 1) * rows + torch.arange(rows, device="cpu").view(1, -1, 1)
    keys = part[:, 3].view(-1, 1, 1) * columns + torch.arange(columns, device="cpu")
    real = (queries <= last_query) & (keys <= last_key)
    return (found[:, 0].to("cpu") & real).contiguous(), real


def _check_function(mask_mod: object) -> None:
    fits = callable(mask_mod)
    if callable(mask_mod):
        try:
            signature(mask_mod).bind(None, None, None, None)
        except (TypeError, ValueError):
            fits = False
    if not fits:
        raise PatternError(
            f"from_mask_mod: mask_mod must be a function of (b, h, q_idx, kv_idx), got {mask_mod!r}"
            "\n  hint: a BlockMask goes into from_block_mask, a boolean tensor into Dense"
        )

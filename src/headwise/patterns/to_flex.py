"""Patterns as the mask functions and block masks of torch's FlexAttention."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise.errors import PatternError
from headwise.patterns.base import Pattern
from headwise.patterns.block_kinds import FULL, PARTIAL, block_kinds
from headwise.patterns.blocks import check_count
from headwise.patterns.flex_leaves import Rule
from headwise.patterns.flex_rules import rule
from headwise.patterns.grid import Grid, Offset, check_lengths, grids
from headwise.patterns.variants import Variants, variants
from headwise.patterns.wording import check_sizes

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def mask_mod(
    pattern: Pattern,
    lengths: tuple[int | None, int | None],
    q_offset: Offset | None,
    kv_offset: Offset,
    device: torch.device | str,
) -> Rule:
    """Do what ``Pattern.mask_mod`` promises; ``lengths`` are those of queries and keys.

    Raises:
        PatternError: The pattern does not fit the call, or needs its lengths and has none.
    """
    q_len, kv_len = lengths
    if q_len is not None and kv_len is not None:
        check_lengths(q_len, kv_len)
        places = grids(q_len, kv_len, q_offset, kv_offset)
        for plain, grid in variants(pattern, places).found:
            plain.placed(grid)
        return rule(pattern.simplified(), places, torch.device(device))
    needy = _needs_lengths(pattern)
    if needy is not None or q_len is not kv_len:
        who = "mask_mod" if needy is None else f"mask_mod: {needy}"
        raise PatternError(
            f"{who} must know both lengths of the call, got q_len={q_len} and kv_len={kv_len}\n"
            "  hint: pattern.mask_mod(q_len, kv_len)"
        )
    return rule(pattern.simplified(), grids(0, 0, q_offset, kv_offset), torch.device(device))


def block_mask(
    pattern: Pattern,
    places: tuple[Grid, ...],
    sizes: tuple[int | None, int | None],
    device: torch.device | str,
    block_size: int,
) -> "BlockMask":
    """Return the pattern as a ``BlockMask``, in memory that follows the number of blocks.

    Args:
        pattern: Who may attend to whom.
        places: One grid for all samples, or one per sample.
        sizes: Samples and heads of the mask; ``None`` = as many as the pattern tells apart, or 1.
        device: Where the mask is to lie.
        block_size: Queries, and keys, of a block.

    Raises:
        PatternError: The pattern does not fit the call.
    """
    from torch.nn.attention.flex_attention import BlockMask

    check_count("block_mask", "block_size", block_size, 1, "128 is what torch's kernels take")
    told = variants(pattern, places)
    batch, heads = (
        held if size is None else size for held, size in zip(told.which.shape, sizes, strict=True)
    )
    check_sizes("block_mask", pattern, batch, heads)
    if len(places) not in (1, batch):
        raise PatternError(
            f"block_mask: offsets are given for {len(places)} samples, and the mask is for {batch}"
            "\n  hint: give one offset per sample, or one int for all"
        )
    kinds = _kinds(told, places[0], block_size).expand(batch, heads, -1, -1).to(device)
    return BlockMask.from_kv_blocks(
        *_listed(kinds == PARTIAL),
        *_listed(kinds == FULL),
        BLOCK_SIZE=block_size,
        mask_mod=rule(pattern.simplified(), places, torch.device(device)),
        seq_lengths=(places[0].q_len, places[0].kv_len),
    )


def _kinds(told: Variants, grid: Grid, block: int) -> Tensor:
    """Return the kinds of the blocks of every sample and head that are told apart."""
    if not told.found:
        return torch.zeros(*told.which.shape, -(-grid.q_len // block), -(-grid.kv_len // block))
    each = [
        block_kinds(plain.placed(place).simplified(), place, block) for plain, place in told.found
    ]
    return torch.stack(each)[told.which]


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many key blocks each row of query blocks has, and their numbers in front."""
    order = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32).contiguous()


def _needs_lengths(pattern: Pattern) -> str | None:
    """Name the first part of a pattern that has to be placed in a call, if there is one."""
    inner: list[Pattern] = []
    for held in vars(pattern).values():
        parts = held if isinstance(held, tuple) else (held,)
        inner += [part for part in parts if isinstance(part, Pattern)]
    if inner:
        return next((found for part in inner if (found := _needs_lengths(part))), None)
    return None if type(pattern).placed is Pattern.placed else type(pattern).__name__

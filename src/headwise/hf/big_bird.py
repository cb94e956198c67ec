"""What transformers' BigBird computes, as a pattern and a bias, to compare with the paper's."""

from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.errors import PatternError, ShapeError
from headwise.patterns import Pattern, Tiles

# Lengths for which transformers draws by the rule of the paper's own code.
_OLD_PLANS = (1024, 3072, 4096)
FEWEST_BLOCKS = 4


class BigBirdBlocks(NamedTuple):
    """Who attends to whom in transformers' BigBird, and how often: arguments of ``attend``."""

    pattern: Pattern
    bias: Tensor | None


def big_bird(attention: nn.Module, length: int, *, training: bool | None = None) -> BigBirdBlocks:
    """Say what a block-sparse attention of transformers' BigBird computes for one length.

    ``headwise.patterns.bigbird`` is the paper's set of pairs, each of which counts once.
    transformers computes something else, in two modes, which this reproduces:

    - In evaluation it draws nothing. All its random blocks are block 0, so that the rows between
      the first and the last block count block 0 ``1 + num_random_blocks`` times: a bias of
      ``log(1 + num_random_blocks)``, and no random block at all.
    - In training it draws blocks for every head from the number of the layer, the same ones in
      every step. At 1024 tokens, and where it has few blocks to draw from, blocks may be among
      them that are seen already; they count as often as they are named. Where it has fewer still,
      its own code fails, and so does this.

    A model of transformers silently turns to full attention for inputs of up to
    ``(5 + 2 * num_random_blocks) * block_size`` tokens; this helper and the pattern never do.

    Padding is joined to the pattern: ``& headwise.Documents(real.long() - 1)`` also gives padded
    queries zeros, as there.

    Args:
        attention: A ``BigBirdBlockSparseAttention``, ``model.encoder.layer[i].attention.self``, or
            that of BigBirdPegasus.
        length: Tokens of the input; transformers pads it to whole blocks.
        training: Which mode; ``None`` = the mode that ``attention`` is in.

    Returns:
        ``BigBirdBlocks(pattern, bias)`` for ``headwise.attend``. The bias is ``None`` where every
        pair counts once; elsewhere it is spelled out, (1, heads or 1, length, length), float32 or
        wider: made for comparisons, not for long inputs.

    Raises:
        TypeError: A module that is no such attention.
        ShapeError: A length that fills fewer than 4 blocks.
        PatternError: Training with blocks that transformers' own code fails to draw.

    Example:
        >>> import torch, headwise as hw
        >>> from transformers import BigBirdConfig, BigBirdModel
        >>> config = BigBirdConfig(
        ...     hidden_size=8, num_attention_heads=2, num_hidden_layers=1, block_size=4
        ... )
        >>> layer = BigBirdModel(config).eval().encoder.layer[0].attention.self
        >>> pattern, bias = hw.hf.big_bird(layer, 50)
        >>> round(float(bias[0, 0, 20, 0].exp()))
        4
    """
    theirs: Any = attention
    blocks, block = _blocks(theirs, length), theirs.block_size
    drawing = attention.training if training is None else training
    drawn = _drawn(theirs, blocks) if drawing else _block_zero(theirs, blocks)
    counts = counts_of(drawn, blocks)
    bias = None
    if int(counts.max()) > 1:
        dtype = torch.promote_types(theirs.query.weight.dtype, torch.float32)
        often = counts.clamp(min=1).to(theirs.query.weight.device, dtype).log()
        spelled = often.repeat_interleave(block, 1).repeat_interleave(block, 2)
        bias = spelled[None, :, :length, :length]
    return BigBirdBlocks(Tiles(counts.unsqueeze(0) > 0, block), bias)


def _blocks(attention: Any, length: int) -> int:
    """Return how many blocks an input has, the last one perhaps cut short."""
    if not hasattr(attention, "_bigbird_block_rand_mask_with_head"):
        raise TypeError(
            "big_bird: attention must be transformers' BigBirdBlockSparseAttention, got "
            f"{type(attention).__name__}\n"
            "  hint: it is model.encoder.layer[i].attention.self; a model that was given a short "
            "input has full attention there until model.set_attention_type('block_sparse')"
        )
    blocks: int = -(-length // attention.block_size)
    if blocks < FEWEST_BLOCKS:
        raise ShapeError(
            f"big_bird: length must fill at least {FEWEST_BLOCKS} blocks of "
            f"{attention.block_size} tokens, got {length}\n"
            "  hint: transformers has no block-sparse attention for less; "
            "headwise.patterns.bigbird takes any length"
        )
    return blocks


def _block_zero(attention: Any, blocks: int) -> Tensor:
    """Return what evaluation has in place of random blocks, (1, blocks - 2, count)."""
    return torch.zeros(1, blocks - 2, attention.num_random_blocks, dtype=torch.int64, device="cpu")


def _drawn(attention: Any, blocks: int) -> Tensor:
    """Ask transformers for the blocks of a training step, and leave numpy's state as it was."""
    import numpy as np

    if attention.seed is None:
        raise PatternError(
            "big_bird: attention must have a seed to draw from in training, got None\n"
            "  hint: attentions inside a model have the number of their layer"
        )
    asked, count = copy(attention), attention.num_random_blocks
    asked.training = True
    before = np.random.get_state()
    try:
        return drawn_blocks(asked, blocks)
    except ValueError as failed:
        raise PatternError(
            f"big_bird: transformers cannot draw {count} random blocks for an input of {blocks} "
            f"blocks ({failed})\n"
            f"  hint: its models train with more than {5 + 2 * count} blocks"
        ) from failed
    finally:
        np.random.set_state(before)


def drawn_blocks(attention: Any, blocks: int) -> Tensor:
    """Draw the blocks of a training step, (heads, blocks - 2, count), as transformers would.

    Like there, numpy is given the seed of the layer, and keeps the state that this leads to.
    """
    import numpy as np

    side, count, heads = (
        attention.block_size,
        attention.num_random_blocks,
        attention.num_attention_heads,
    )
    end, padded = attention.max_seqlen, blocks * side
    np.random.seed(attention.seed)
    if padded in _OLD_PLANS:
        found = [
            attention._bigbird_block_rand_mask(end, end, side, side, count, last_idx=1024)
            for _ in range(heads)
        ]
    else:
        plan = attention._get_rand_attn_plan(padded, side, count)
        found = attention._bigbird_block_rand_mask_with_head(
            padded, padded, side, side, heads, *plan
        )
    return torch.from_numpy(np.stack(found)[:, : blocks - 2]).long()


def counts_of(drawn: Tensor, blocks: int) -> Tensor:
    """Count how often a block of queries sees a block of keys, (heads, blocks, blocks)."""
    place = torch.arange(blocks, device="cpu")
    near = (place - place.unsqueeze(1)).abs() <= 1
    ends = (place == 0) | (place == blocks - 1)
    once = near | ends | ends.unsqueeze(1)
    counts = once.long().repeat(len(drawn), 1, 1)
    counts[:, 1:-1].scatter_add_(2, drawn, torch.ones_like(drawn))
    return counts

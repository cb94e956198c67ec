"""Combinations that have a name elsewhere."""

from headwise._checks import is_int
from headwise.errors import PatternError
from headwise.patterns.base import Pattern
from headwise.patterns.blocks import BlockWindow, GlobalBlocks, check_count
from headwise.patterns.causal import Causal
from headwise.patterns.content import Numbers
from headwise.patterns.global_tokens import GlobalTokens
from headwise.patterns.random_blocks import RandomBlocks
from headwise.patterns.window import Window


def sliding_causal(window: int) -> Pattern:
    """Let a query see ``window`` keys up to and including itself, as Hugging Face counts them.

    Raises:
        PatternError: A window below 1, which would leave a query nothing to see.
    """
    if not is_int(window) or window < 1:
        raise PatternError(
            f"sliding_causal: window must be an int of at least 1, got {window!r}\n"
            "  hint: the window counts the query's own key; without a window use Causal()"
        )
    return Causal() & Window(window - 1, 0)


def longformer(window: int, global_tokens: Numbers = ()) -> Pattern:
    """Let a query see its neighbours, and chosen tokens see all and be seen by all.

    "Longformer: The Long-Document Transformer" (Beltagy et al., 2020).

    Args:
        window: Neighbours on both sides together, as Longformer and transformers count them:
            ``window // 2`` on each, the query itself beside them.
        global_tokens: The chosen tokens, as ``GlobalTokens`` takes them; none by default.

    Raises:
        PatternError: A window below 1; tokens that ``GlobalTokens`` refuses.
    """
    if not is_int(window) or window < 1:
        raise PatternError(
            f"longformer: window must be an int of at least 1, got {window!r}\n"
            "  hint: the window counts the neighbours on both sides together"
        )
    side, chosen = window // 2, GlobalTokens(global_tokens)
    return Window(side, side) if chosen.which == () else Window(side, side) | chosen


def bigbird(
    block: int,
    window_blocks: int = 3,
    global_blocks: int = 1,
    random_blocks: int = 3,
    seed: int = 0,
    length: int | None = None,
) -> Pattern:
    """Join a window of blocks, global blocks at both ends, and random blocks.

    The block form of "Big Bird: Transformers for Longer Sequences" (Zaheer et al., 2020). Short
    inputs keep the pattern: where fewer blocks are left than random ones are wanted, all of them
    are taken.

    Args:
        block: Tokens in a block.
        window_blocks: Blocks of the window in all, the query's own in the middle; odd.
        global_blocks: Blocks at the start, and as many at the end, that see all and are seen by
            all.
        random_blocks: Further blocks for every block of queries; they never repeat the others.
        seed: Number from which the random blocks are drawn.
        length: Tokens of the sequence; ``None`` = up to the last key of the call.

    Raises:
        PatternError: Counts out of bounds, an even window.
    """
    check_count("bigbird", "window_blocks", window_blocks, 1, "3 is usual, the paper's own")
    if window_blocks % 2 == 0:
        raise PatternError(
            f"bigbird: window_blocks must be odd, got {window_blocks}\n"
            "  hint: the window holds the query's own block and as many on both sides"
        )
    drawn = RandomBlocks(block, random_blocks, seed, window_blocks, global_blocks, length)
    side = window_blocks // 2
    ends = GlobalBlocks(block, global_blocks, global_blocks, length)
    return BlockWindow(block, side, side) | ends | drawn

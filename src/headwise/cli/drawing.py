"""Draws a pattern of any length as text: pair by pair, or at a scale that it names."""

from torch.nn.functional import max_pool2d

from headwise.inspection.picture import ALL, NONE, SOME, cells_of
from headwise.patterns import Pattern
from headwise.patterns.grid import grids

_CELLS = 64  # along a side, so that a drawing fits a terminal
_SIGNS = {NONE: "·", SOME: "▒", ALL: "■"}


def drawn(pattern: Pattern, q_len: int, kv_len: int) -> str:
    """Return a line that says what is drawn, and under it at most 64 lines of 64 signs.

    Where samples or heads differ, the first ones are drawn, number 0, which the line says.
    """
    samples, heads = pattern.batch_size, pattern.num_heads
    title = f"{_queries(q_len)} (down) × {_keys(kv_len)} (across)"
    title += "" if samples in (None, 1) else f", sample 0 of {samples}"
    title += "" if heads in (None, 1) else f", head 0 of {heads}"
    if not q_len or not kv_len:
        return f"{title}: nothing to draw"
    cells = cells_of(pattern.sample(0, 0), grids(q_len, kv_len, None, 0)[0])
    step = tuple(-(-count // _CELLS) for count in cells.shades.shape)
    shades = cells.shades.float().unsqueeze(0)
    highest = max_pool2d(shades, step, ceil_mode=True)[0]
    lowest = -max_pool2d(-shades, step, ceil_mode=True)[0]
    down, along = (size * count for size, count in zip(cells.size, step, strict=True))
    if (down, along) == (1, 1):
        title += ": ■ may attend, · may not"
    else:
        title += f"\neach sign is {_queries(down)} × {_keys(along)}: ■ all allowed, ▒ some, · none"
    merged = highest.clamp(max=SOME).where(lowest < ALL, highest).int()
    return "\n".join([title, *("".join(_SIGNS[cell] for cell in row) for row in merged.tolist())])


def _queries(count: int) -> str:
    return "1 query" if count == 1 else f"{count:,} queries"


def _keys(count: int) -> str:
    return "1 key" if count == 1 else f"{count:,} keys"

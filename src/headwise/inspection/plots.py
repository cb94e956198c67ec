"""Pictures on the axes of matplotlib; nothing here shows or saves one."""

from typing import TYPE_CHECKING, Any

from headwise._checks import is_int
from headwise.errors import PatternError
from headwise.inspection.picture import ALL, CELLS, NONE, SOME, Cells, cells_of
from headwise.patterns import Pattern
from headwise.patterns.grid import Grid, Offset, grids

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# From light to dark, so that they stay apart in grey and for eyes that mix up hues.
_COLOURS = {NONE: "#f3f4f6", SOME: "#7fb2e5", ALL: "#173f7a"}
# Lines between cells, as long as there is room for them.
_LINED = 48
# The longest side of a picture, measured in the other one.
_LONGEST = 4.0
# A cell has a pixel or more, or a row of them could vanish: of the shorter side of the axes this
# much is counted on, for labels may take the rest, and no fewer cells than the last figure.
_COUNTED_ON, _FEWEST = 0.75, 16
# Inches between ticks, so that the numbers stand apart.
_APART = 0.6
_BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0), "frameon": False}
# So that it covers little.
_INSIDE: dict[str, Any] = {
    "fontsize": "x-small",
    "title_fontsize": "x-small",
    "handlelength": 1.0,
    "labelspacing": 0.2,
    "borderpad": 0.3,
    "framealpha": 0.9,
}


def pattern(
    pattern: Pattern,
    q_len: int,
    kv_len: int,
    *,
    q_offset: Offset | None = None,
    kv_offset: Offset = 0,
    sample: int = 0,
    head: int = 0,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw who may attend to whom: a row per query, a column per key.

    Up to 256 tokens, fewer on small axes, a cell is one pair. Beyond that a cell stands for a
    rectangle of pairs, and its shade says whether none, some or all of them are allowed; the
    legend says how large it is. Where samples or heads differ, the title says which one is shown.
    Above 4,096 × 4,096 pairs the cells are made of the tiles of 48 queries × 128 keys that the
    kernels work on, read from what ``attend`` itself uses; memory then follows the live tiles.

    Args:
        pattern: What to draw.
        q_len: Number of queries, at least 1.
        kv_len: Number of keys, at least 1.
        q_offset: Absolute position of the first query; an int, or one per sample. ``None`` puts
            the last query beside the last key.
        kv_offset: Absolute position of the first key; an int, or one per sample.
        sample: Which sample to draw, where they differ; counted from 0.
        head: Which query head to draw, likewise.
        ax: Axes to draw on, with the legend where the fewest pairs are allowed; ``None`` makes a
            figure for them, with the legend beside the picture.

    Returns:
        The axes. Nothing is shown or saved: ``ax.figure.savefig("pattern.png")`` saves it.

    Raises:
        ImportError: matplotlib is not installed.
        PatternError: No query or no key, a sample or head that is not there, or a pattern that
            does not fit the sizes.

    Example:
        >>> from headwise.patterns import Causal
        >>> import matplotlib
        >>> matplotlib.use("agg")
        >>> ax = pattern(Causal(), 16, 16)
        >>> ax.get_xlabel(), ax.get_ylabel()
        ('key position', 'query position')
    """
    _require_matplotlib()
    from matplotlib import pyplot as plt

    places = grids(q_len, kv_len, q_offset, kv_offset)
    grid = _grid(pattern, places, sample, head)
    alone = ax is None
    if ax is None:
        ax = plt.subplots(figsize=(7.2, 4.8), layout="compressed")[1]
    pixels = int(_COUNTED_ON * min(ax.bbox.width, ax.bbox.height))
    cells = cells_of(pattern.sample(sample, head), grid, min(max(pixels, _FEWEST), CELLS))
    _draw(cells, ax)
    _add_legend(ax, cells, beside=alone)
    told_apart = (
        ("sample", sample, max(pattern.batch_size or 1, len(places))),
        ("head", head, pattern.num_heads or 1),
    )
    shown = [f"{name} {number} of {count}" for name, number, count in told_apart if count > 1]
    if shown:
        ax.set_title(", ".join(shown))
    return ax


def _draw(cells: Cells, ax: "Axes") -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    keys, queries = ((edges - 0.5).numpy() for edges in (cells.keys, cells.queries))
    ax.pcolormesh(
        keys,
        queries,
        cells.shades.numpy(),
        cmap=ListedColormap([_COLOURS[shade] for shade in (NONE, SOME, ALL)]),
        vmin=NONE - 0.5,
        vmax=ALL + 0.5,
        edgecolors="white" if max(cells.shades.shape) <= _LINED else "none",
        linewidth=0.5,
        rasterized=True,
    )
    ax.set(
        xlabel="key position",
        ylabel="query position",
        xlim=(keys[0], keys[-1]),
        ylim=(queries[-1], queries[0]),
    )
    ratio = float((queries[-1] - queries[0]) / (keys[-1] - keys[0]))
    ax.set_box_aspect(min(max(ratio, 1 / _LONGEST), _LONGEST))
    inches = min(ax.bbox.width, ax.bbox.height) / ax.figure.dpi
    ticks = min(max(int(inches / _APART), 2), 6)
    # Below the cells, so that an outermost row or column is not hidden.
    for spine in ax.spines.values():
        spine.set(zorder=0, color="0.8")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(ticks, integer=True, min_n_ticks=1))
        axis.set_major_formatter("{x:,.0f}")


def _add_legend(ax: "Axes", cells: Cells, *, beside: bool) -> None:
    """Put a legend beside the picture, or in its emptiest corner."""
    from matplotlib.patches import Patch

    single = cells.size == (1, 1)
    labels = {NONE: "may not attend", ALL: "may attend"}
    if not single:
        labels = {NONE: "no pair allowed", SOME: "some pairs", ALL: "all pairs"}
    ax.legend(
        handles=[
            Patch(facecolor=_COLOURS[shade], edgecolor="0.6", label=label)
            for shade, label in labels.items()
        ],
        title=None if single else f"cells of {cells.size[0]} × {cells.size[1]}",
        **(_BESIDE if beside else {"loc": _emptiest_corner(cells), **_INSIDE}),
    )


def _emptiest_corner(cells: Cells) -> str:
    rows, columns = (-(-size // 2) for size in cells.shades.shape)
    corners = {
        f"{vertical} {horizontal}": int((cells.shades[down, along] != NONE).sum())
        for vertical, down in (("upper", slice(rows)), ("lower", slice(-rows, None)))
        for horizontal, along in (("right", slice(-columns, None)), ("left", slice(columns)))
    }
    return min(corners, key=corners.__getitem__)


def _grid(pattern: Pattern, places: tuple[Grid, ...], sample: int, head: int) -> Grid:
    """Return where the queries and keys of one sample stand, or refuse what is not there."""
    grid = places[0]
    for name, length in (("q_len", grid.q_len), ("kv_len", grid.kv_len)):
        if not is_int(length) or length < 1:
            raise PatternError(
                f"plots.pattern: {name} must be an int of at least 1, got {length!r}\n"
                "  hint: a picture needs a query and a key"
            )
    for name, asked, counts in (
        ("sample", sample, (pattern.batch_size, len(places))),
        ("head", head, (pattern.num_heads,)),
    ):
        told_apart = [count for count in counts if count not in (None, 1)]
        if not is_int(asked) or asked < 0 or any(asked >= count for count in told_apart):
            raise PatternError(
                f"plots.pattern: {name} must be an int from 0 to {min(told_apart, default=1) - 1}, "
                f"got {asked!r}\n  hint: the pattern and its offsets tell apart no more"
            )
    return places[sample if len(places) > 1 else 0]


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as missing:
        raise ImportError(
            f"headwise.inspection.plots needs matplotlib ({missing})\n"
            "  hint: pip install 'headwise[plot]'"
        ) from missing

"""Pictures on the axes of matplotlib; nothing here shows or saves one."""

from typing import TYPE_CHECKING

from headwise._checks import is_int
from headwise.errors import PatternError
from headwise.inspection.picture import ALL, NONE, SOME, Cells, cells_of
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

    Up to 256 tokens a cell is one pair. Beyond that a cell stands for a rectangle of pairs, and
    its shade says whether none, some or all of them are allowed; the legend says how large it is.
    Above 4,096 × 4,096 pairs the cells are made of the tiles of 48 queries × 128 keys that the
    kernels work on, read from what ``attend`` itself uses; memory then follows the live tiles.

    Args:
        pattern: What to draw.
        q_len: Number of queries, at least 1.
        kv_len: Number of keys, at least 1.
        q_offset: Absolute position of the first query; an int, or one per sample. ``None`` puts
            the last query beside the last key.
        kv_offset: Absolute position of the first key; an int, or one per sample.
        sample: Which sample to draw, where they differ.
        head: Which query head to draw, where they differ.
        ax: Axes to draw on; ``None`` makes a figure for them.

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
    grid = _grid(pattern, grids(q_len, kv_len, q_offset, kv_offset), sample, head)
    return _drawn(cells_of(pattern.sample(sample, head), grid), ax)


def _drawn(cells: Cells, ax: "Axes | None") -> "Axes":
    from matplotlib import pyplot as plt
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    if ax is None:
        ax = plt.subplots(figsize=(7.2, 4.8), layout="compressed")[1]
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
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    _add_legend(ax, cells)
    return ax


def _add_legend(ax: "Axes", cells: Cells) -> None:
    """Put a legend beside the picture."""
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
        loc="upper left",
        bbox_to_anchor=(1.02, 1.0),
        borderaxespad=0.0,
        frameon=False,
    )


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

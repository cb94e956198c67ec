"""Pictures of patterns: the data that is drawn, and where it stands."""

import sys
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import pytest
import torch
from matplotlib import pyplot as plt
from torch import Tensor

import headwise as hw
from headwise.inspection import plots
from headwise.patterns import Pattern

pytestmark = pytest.mark.usefixtures("plain_calls")

NONE, SOME, ALL = 0, 1, 2
PATTERNS = [
    hw.Causal() & hw.Window(300, 0),
    hw.patterns.longformer(512, (0, 2500)),
    hw.patterns.bigbird(96, seed=3),
    hw.Strided(700) & hw.Causal(),
    ~hw.Causal(),
    hw.Full(),
    ~hw.Full(),
]


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    mpl.use("agg")
    yield
    plt.close("all")


def drawn(ax: Any) -> Tensor:
    """Return the shades on the axes, a row per row of cells."""
    (mesh,) = ax.collections
    shades: Tensor = torch.from_numpy(mesh.get_array().data.copy())
    return shades


def edges(ax: Any) -> tuple[list[float], list[float]]:
    """Return where rows and columns of cells begin and end."""
    (mesh,) = ax.collections
    corners = mesh.get_coordinates()
    return corners[:, 0, 1].tolist(), corners[0, :, 0].tolist()


def legend(ax: Any) -> list[str]:
    found = ax.get_legend()
    title = found.get_title().get_text()
    return [text.get_text() for text in found.get_texts()] + ([title] if title else [])


def shades_of(pattern: Pattern, q_len: int, kv_len: int, down: int, along: int) -> Tensor:
    """Sort a spelled-out mask into cells of ``down`` queries × ``along`` keys, one by one."""
    mask = pattern.dense(q_len, kv_len)
    found = [
        [
            ALL if bool(cell.all()) else SOME if bool(cell.any()) else NONE
            for cell in torch.split(rows, along, 1)
        ]
        for rows in torch.split(mask, down)
    ]
    return torch.tensor(found, dtype=torch.uint8)


def test_short_patterns_are_drawn_pair_by_pair() -> None:
    pattern = hw.patterns.longformer(4, (0,))
    ax = plots.pattern(pattern, 7, 11)
    assert torch.equal(drawn(ax), pattern.dense(7, 11).to(torch.uint8) * ALL)
    assert edges(ax) == ([i + 3.5 for i in range(8)], [j - 0.5 for j in range(12)])
    assert legend(ax) == ["may not attend", "may attend"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key position", "query position")
    assert (ax.get_xlim(), ax.get_ylim()) == ((-0.5, 10.5), (10.5, 3.5))


def test_offsets_move_the_axes() -> None:
    pattern = hw.Causal() & hw.Window(2, 0)
    ax = plots.pattern(pattern, 3, 5, q_offset=9, kv_offset=6)
    assert torch.equal(drawn(ax) == ALL, pattern.dense(3, 5, 9, 6))
    assert edges(ax) == ([8.5, 9.5, 10.5, 11.5], [5.5, 6.5, 7.5, 8.5, 9.5, 10.5])


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_longer_patterns_are_drawn_by_rectangles_of_pairs(pattern: Pattern) -> None:
    ax = plots.pattern(pattern, 600, 1301)
    assert torch.equal(drawn(ax), shades_of(pattern, 600, 1301, 3, 6))
    assert edges(ax)[0][:3] + edges(ax)[0][-2:] == [700.5, 703.5, 706.5, 1297.5, 1300.5]
    assert edges(ax)[1][:3] + edges(ax)[1][-2:] == [-0.5, 5.5, 11.5, 1295.5, 1300.5]
    assert legend(ax) == ["no pair allowed", "some pairs", "all pairs", "cells of 3 × 6"]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_long_patterns_are_drawn_by_tiles(pattern: Pattern) -> None:
    ax = plots.pattern(pattern, 4130, 4100)
    assert torch.equal(drawn(ax), shades_of(pattern, 4130, 4100, 48, 128))
    assert legend(ax)[-1] == "cells of 48 × 128"
    assert edges(ax)[0][-1] == edges(ax)[1][-1] == 4099.5


def test_one_query_of_many_keys() -> None:
    pattern = hw.Causal() & hw.Window(9999, 0)
    shades = drawn(plots.pattern(pattern, 1, 65_536))
    assert shades.shape == (1, 256)
    assert shades[0].tolist() == [NONE] * 216 + [SOME] + [ALL] * 39


def test_65536_tokens_are_never_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Pattern, "spelled")
    pattern = hw.patterns.longformer(512, (0,))
    ax = plots.pattern(pattern, 65_536, 65_536)
    shades = drawn(ax)
    assert shades.shape == (228, 256)
    assert legend(ax)[-1] == "cells of 288 × 256"
    assert bool((shades[0] != NONE).all())
    assert bool((shades[:, 0] != NONE).all())
    mean = (shades[1:, 1:] != NONE).float().mean()
    assert 0.005 < mean < 0.02


def test_sample_and_head_are_chosen() -> None:
    pattern = hw.PerHead([hw.Lengths([2, 4]), hw.Causal()])
    whole = pattern.dense(4, 4)
    for sample in (0, 1):
        for head in (0, 1):
            ax = plots.pattern(pattern, 4, 4, sample=sample, head=head)
            assert torch.equal(drawn(ax) == ALL, whole[sample, head])


def test_offsets_of_samples_are_chosen() -> None:
    ax = plots.pattern(hw.Causal(), 2, 4, q_offset=torch.tensor([0, 2]), sample=1)
    assert torch.equal(drawn(ax) == ALL, hw.Causal().dense(2, 4, 2))


def test_axes_of_others_are_used_and_no_figure_is_made() -> None:
    ax = plt.subplots()[1]
    assert plots.pattern(hw.Causal(), 3, 3, ax=ax) is ax
    assert plt.get_fignums() == [1]


@pytest.mark.parametrize(
    ("pattern", "chosen", "title"),
    [
        (hw.Causal(), {}, ""),
        (hw.PerHead([hw.Causal(), hw.Full()]), {"head": 1}, "head 1 of 2"),
        (hw.Lengths([1, 2, 3]), {"sample": 2}, "sample 2 of 3"),
        (hw.Causal(), {"q_offset": torch.tensor([0, 2])}, "sample 0 of 2"),
        (
            hw.PerHead([hw.Lengths([1, 2]), hw.Full()]),
            {"sample": 1},
            "sample 1 of 2, head 0 of 2",
        ),
        (hw.PerHead([hw.Lengths([1])]), {}, ""),
    ],
)
def test_the_title_says_what_is_shown(pattern: Pattern, chosen: dict[str, Any], title: str) -> None:
    assert plots.pattern(pattern, 3, 3, **chosen).get_title() == title


@pytest.mark.parametrize("side", [4.8, 2.0])
def test_outermost_rows_and_columns_have_pixels(side: float) -> None:
    pattern = hw.GlobalTokens((0, 65_535))
    ax = plots.pattern(pattern, 65_536, 65_536, ax=plt.subplots(figsize=(side, side))[1])
    canvas: Any = ax.get_figure(root=True).canvas  # type: ignore[union-attr]
    canvas.draw()
    pixels = torch.frombuffer(bytearray(canvas.buffer_rgba()), dtype=torch.uint8)
    pixels = pixels.view(*reversed(canvas.get_width_height()), 4)[..., :3]
    light = (pixels == torch.tensor([127, 178, 229], dtype=torch.uint8)).all(2)
    box = ax.get_window_extent()
    for along, length in ((light.sum(1), box.width), (light.sum(0), box.height)):
        lines = along > 0.7 * length
        assert int((lines[1:] & ~lines[:-1]).sum()) == 2


@pytest.mark.parametrize(
    ("pattern", "corner"),
    [
        (hw.Causal(), "upper right"),
        (~hw.Causal(), "lower left"),
        (hw.Prefix(150) | hw.Causal(), "upper right"),
        (hw.Full(), "upper right"),
    ],
)
def test_on_axes_of_others_the_legend_stays_inside(pattern: Pattern, corner: str) -> None:
    figure, axes = plt.subplots(2, 2)
    ax = plots.pattern(pattern, 300, 300, ax=axes[1, 0])
    figure.canvas.draw()
    found, box = ax.get_legend(), ax.get_window_extent()
    assert found is not None
    inside = found.get_window_extent()
    assert box.x0 <= inside.x0 < inside.x1 <= box.x1
    assert box.y0 <= inside.y0 < inside.y1 <= box.y1
    middle = ((inside.y0 + inside.y1) / 2, (inside.x0 + inside.x1) / 2)
    assert corner == (
        f"{'upper' if middle[0] > (box.y0 + box.y1) / 2 else 'lower'} "
        f"{'right' if middle[1] > (box.x0 + box.x1) / 2 else 'left'}"
    )


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 2), (2, 5), (7, 300), (5000, 5000)])
def test_ticks_are_positions(q_len: int, kv_len: int) -> None:
    ax = plots.pattern(hw.Full(), q_len, kv_len, q_offset=10**6, kv_offset=10**6)
    for axis, length in ((ax.xaxis, kv_len), (ax.yaxis, q_len)):
        found = [
            int(text.replace(",", ""))
            for text in axis.get_major_formatter().format_ticks(
                [tick for tick in axis.get_majorticklocs() if 0 <= tick - 10**6 < length]
            )
        ]
        assert found
        assert len(set(found)) == len(found)
        assert all(float(tick).is_integer() for tick in axis.get_majorticklocs())


def test_a_figure_can_be_rendered(tmp_path: Any) -> None:
    path = tmp_path / "pattern.png"
    figure = plots.pattern(hw.Causal(), 300, 300).get_figure(root=True)
    assert figure is not None
    figure.savefig(path)
    assert path.stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            {"q_len": 0},
            "plots.pattern: q_len must be an int of at least 1, got 0\n"
            "  hint: a picture needs a query and a key",
        ),
        (
            {"kv_len": 2.5},
            "plots.pattern: kv_len must be an int of at least 1, got 2.5\n"
            "  hint: a picture needs a query and a key",
        ),
        (
            {"sample": 2},
            "plots.pattern: sample must be an int from 0 to 1, got 2\n"
            "  hint: the pattern and its offsets tell apart no more",
        ),
        (
            {"head": -1},
            "plots.pattern: head must be an int from 0 to 2, got -1\n"
            "  hint: the pattern and its offsets tell apart no more",
        ),
    ],
)
def test_refusals(arguments: dict[str, Any], complaint: str) -> None:
    pattern = hw.PerHead([hw.Causal(), hw.Full(), hw.Causal()]) & hw.Lengths([1, 2])
    sizes = {"q_len": 2, "kv_len": 2} | arguments
    with pytest.raises(hw.PatternError) as refused:
        plots.pattern(pattern, **sizes)
    assert str(refused.value) == complaint


def test_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError) as missing:
        plots.pattern(hw.Causal(), 2, 2)
    lines = str(missing.value).splitlines()
    assert lines[0].startswith("headwise.inspection.plots needs matplotlib (")
    assert lines[1] == "  hint: pip install 'headwise[plot]'"

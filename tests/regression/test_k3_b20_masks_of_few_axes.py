"""B20: masks of last size 1 or of lower rank were read out of bounds or refused."""

import pytest
import torch

import headwise as hw
from headwise.patterns import Tiles
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_exact_once
from tests.support.shapes import Sizes, inputs

SIZES = Sizes(2, 3, 1, 5, 5, 8, 8)
SHAPES = [(5,), (), (1, 5), (5, 1), (1, 1), (2, 1, 1, 5), (2, 1, 5, 1), (1, 3, 1, 5), (2, 3, 5, 5)]


def variants(mask: torch.Tensor) -> list[torch.Tensor]:
    """The same numbers plain, expanded from one, and strided."""
    strided = torch.stack([mask, mask], -1)[..., 0]
    return [mask, strided, *([mask[..., :1].expand(mask.shape)] if mask.ndim else [])]


@on_all
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bias_of_any_shape(path: Path, shape: tuple[int, ...]) -> None:
    for bias in variants(torch.randn(shape)):
        judged(path, *inputs(SIZES), bias=bias)


@on_all
@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) in (2, 4)], ids=str)
def test_dense_of_any_shape(path: Path, shape: tuple[int, ...]) -> None:
    for mask in variants(torch.rand(shape) < 0.6):
        judged(path, *inputs(SIZES), hw.Dense(mask), visible=mask)


@on_all
@pytest.mark.parametrize("shape", [(3, 2), (1, 1, 3, 2), (2, 1, 3, 2), (1, 3, 3, 2), (2, 3, 3, 2)])
def test_tiles_of_any_shape(path: Path, shape: tuple[int, ...]) -> None:
    """Tiles of two queries and three keys; one for all samples or heads, where their axis is 1."""
    for tiles in variants(torch.rand(shape) < 0.6):
        visible = tiles.repeat_interleave(2, -2).repeat_interleave(3, -1)[..., :5, :5]
        for given in (tiles, tiles.int(), tiles.to(torch.uint8)):
            judged(path, *inputs(SIZES), Tiles(given, (2, 3)), visible=visible)


@on_all
def test_chosen_tokens(path: Path) -> None:
    for chosen in (*variants(torch.rand(2, 5) < 0.4), *variants(torch.rand(1, 5) < 0.4)):
        visible = (chosen.unsqueeze(1) | chosen.unsqueeze(2)).unsqueeze(1)
        judged(path, *inputs(SIZES), hw.GlobalTokens(chosen), visible=visible)
    for chosen in variants(torch.rand(5) < 0.4):
        for given in (chosen, chosen.nonzero().flatten(), chosen.nonzero().flatten().tolist()):
            visible = chosen | chosen.unsqueeze(1)
            judged(path, *inputs(SIZES), hw.GlobalTokens(given), visible=visible)


@on_all
def test_key_masks(path: Path) -> None:
    for mask in variants(torch.rand(2, 5) < 0.6):
        judged(path, *inputs(SIZES), hw.KeyMask(mask), visible=mask[:, None, None])
    for mask in variants(torch.rand(5) < 0.6):
        judged(path, *inputs(SIZES), hw.KeyMask(mask), visible=mask)


@on_exact_once
@pytest.mark.parametrize("q_len", [3, 61])
def test_bias_broadcast_over_long_axes(path: Path, q_len: int) -> None:
    given = inputs(Sizes(2, 3, 2, q_len, 201, 8, 8))
    for shape in [(201,), (q_len, 1), (2, 1, 1, 201), (1, 6, 1, 1), (2, 6, q_len, 201)]:
        for bias in variants(torch.randn(shape)):
            judged(path, *given, hw.Lengths(190), visible=torch.arange(201) < 190, bias=bias)
    turned = torch.randn(201, q_len).T
    judged(path, *given, bias=turned)


def test_a_three_dimensional_mask_is_ambiguous() -> None:
    with pytest.raises(hw.PatternError, match=r"got \(2, 5, 5\)"):
        hw.Dense(torch.ones(2, 5, 5, dtype=torch.bool))
    with pytest.raises(hw.ShapeError, match="say which axis is missing"):
        hw.attend(*inputs(SIZES), bias=torch.zeros(2, 5, 5))

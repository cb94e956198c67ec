"""The extension refuses what would let a kernel leave its memory."""

import pytest
import torch

from headwise import _native

QUERY = torch.zeros(2, 2, 60, 8)
GOOD = {
    "which": torch.zeros(1, 1, dtype=torch.int32),
    "starts": torch.tensor([[0, 1, 2]], dtype=torch.int32),
    "entries": torch.tensor([[0, 1, -1], [0, 1, 0]], dtype=torch.int32),
    "bitmaps": torch.zeros(1, 128, dtype=torch.int64),
}
WRONG = {
    "which": torch.ones(1, 1, dtype=torch.int32),
    "starts": torch.tensor([[0, 2, 3]], dtype=torch.int32),
    "entries": torch.tensor([[0, 1, -1], [0, 1, 1]], dtype=torch.int32),
    "bitmaps": torch.zeros(1, 64, dtype=torch.int64),
}


def attend(lse: torch.Tensor, tiles: object) -> None:
    output = torch.zeros(2, 2, 60, 8)
    _native.kernels.attend(QUERY, QUERY, QUERY, output, lse, None, tiles, 1.0, 1)


def test_good_tables_are_taken() -> None:
    attend(torch.zeros(2, 2, 60), _native.kernels.LiveTiles(**GOOD))


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_tables_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"layout|entries|entry|tables"):
        _native.kernels.LiveTiles(**(GOOD | {name: WRONG[name]}))


def test_tiles_past_the_keys_are_refused() -> None:
    entries = torch.tensor([[0, 1, -1], [3, 2, -1]], dtype=torch.int32)
    tiles = _native.kernels.LiveTiles(**(GOOD | {"entries": entries}))
    with pytest.raises(ValueError, match="made for a call of other sizes"):
        attend(torch.zeros(2, 2, 60), tiles)


@pytest.mark.parametrize(
    "lse",
    [
        torch.zeros(1, 2, 60).expand(2, 2, 60),
        torch.zeros(2, 2, 120)[:, :, ::2],
        torch.zeros(2, 2, 60, dtype=torch.float64),
        torch.zeros(2, 2, 59),
    ],
    ids=["expanded", "strided", "float64", "short"],
)
def test_wrong_results_are_refused(lse: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="lse must be"):
        attend(lse, None)

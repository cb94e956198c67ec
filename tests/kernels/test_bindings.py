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
    nothing = (None, None, None, None, None)
    rest = (*nothing, 0.0, 0.0, 0, tiles, 1.0, 1)
    _native.kernels.attend(QUERY, QUERY, QUERY, output, lse, *rest)


def backward(**wrong: torch.Tensor | None) -> None:
    lse, d_lse = torch.zeros(2, 2, 60, 2), torch.zeros(2, 2, 60)
    given = {"d_output": QUERY, "d_lse": d_lse, "query": QUERY, "key": QUERY, "value": QUERY}
    given |= {"output": QUERY, "lse": lse}
    results = {name: torch.zeros(2, 2, 60, 8) for name in ("d_query", "d_key", "d_value")}
    named = {**given, **results, "d_sinks": None, "bias": None, "slopes": None, "table": None}
    named |= {"shifts": None, "sinks": None} | wrong
    _native.kernels.attend_backward(*named.values(), 0.0, 0.0, 0, None, 1.0, 1)


def test_good_tables_are_taken() -> None:
    attend(torch.zeros(2, 2, 60, 2), _native.kernels.LiveTiles(**GOOD))


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_tables_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"layout|entries|entry|tables"):
        _native.kernels.LiveTiles(**(GOOD | {name: WRONG[name]}))


def test_tiles_past_the_keys_are_refused() -> None:
    entries = torch.tensor([[0, 1, -1], [3, 2, -1]], dtype=torch.int32)
    tiles = _native.kernels.LiveTiles(**(GOOD | {"entries": entries}))
    with pytest.raises(ValueError, match="made for a call of other sizes"):
        attend(torch.zeros(2, 2, 60, 2), tiles)


@pytest.mark.parametrize(
    "lse",
    [
        torch.zeros(1, 2, 60, 2).expand(2, 2, 60, 2),
        torch.zeros(2, 2, 120, 2)[:, :, ::2],
        torch.zeros(2, 2, 60, 2, dtype=torch.float64),
        torch.zeros(2, 2, 59, 2),
    ],
    ids=["expanded", "strided", "float64", "short"],
)
def test_wrong_results_are_refused(lse: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="lse must be"):
        attend(lse, None)


def test_good_gradients_are_taken() -> None:
    backward()
    backward(d_lse=None)
    backward(sinks=torch.zeros(2), d_sinks=torch.zeros(2))
    backward(bias=torch.zeros(1).expand(2, 2, 60, 60))
    backward(table=torch.zeros(2, 119), shifts=torch.tensor([59]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"d_output": torch.zeros(2, 2, 59, 8)},
        {"d_output": torch.zeros(2, 2, 60, 8, dtype=torch.float64)},
        {"d_lse": torch.zeros(2, 2, 59)},
        {"output": torch.zeros(2, 2, 60, 7)},
        {"lse": torch.zeros(2, 2, 120, 2)[:, :, ::2]},
        {"d_query": torch.zeros(2, 2, 60, 8, dtype=torch.bfloat16)},
        {"d_key": torch.zeros(2, 1, 60, 8)},
        {"sinks": torch.zeros(3)},
        {"sinks": torch.zeros(2), "d_sinks": torch.zeros(1)},
        {"d_sinks": torch.zeros(2)},
        {"bias": torch.zeros(2, 2, 60, 59)},
        {"slopes": torch.zeros(2)},
        {"slopes": torch.zeros(3), "shifts": torch.tensor([0])},
        {"slopes": torch.zeros(2), "shifts": torch.tensor([0, 0, 0])},
        {"table": torch.zeros(2, 119)},
        {"table": torch.zeros(2, 118), "shifts": torch.tensor([59])},
        {"table": torch.zeros(2, 119), "shifts": torch.tensor([58])},
        {"table": torch.zeros(2, 119), "shifts": torch.tensor([60, 59])},
        {"table": torch.zeros(2, 119), "shifts": torch.tensor([2**62])},
    ],
    ids=lambda wrong: ", ".join(f"{name} {tuple(t.shape)}" for name, t in wrong.items()),
)
def test_gradients_that_would_leave_memory_are_refused(wrong: dict[str, torch.Tensor]) -> None:
    with pytest.raises((ValueError, TypeError)):
        backward(**wrong)

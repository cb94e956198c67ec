"""Rows that are kept: computed once, shared, grown, and bounded."""

import gc
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from headwise.positions import Rotary, tables
from headwise.positions.tables import Table, table_of
from tests.support.budget import assert_same_bits

CPU, FLOAT = torch.device("cpu"), torch.float32


@dataclass(frozen=True)
class Counted:
    """A row is its position, twice; what was computed is noted."""

    name: str = "rows"
    asked: list[tuple[int, ...]] = field(default_factory=list, compare=False)
    width: int = 2

    def rows(self, places: Tensor, dtype: torch.dtype) -> Tensor:
        self.asked.append(tuple(places.shape))
        return places.to(dtype)[..., None].expand(*places.shape, 2).contiguous()

    def parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        return (rows,)


def ask(table: Table, offset: int | list[int], length: int) -> Tensor:
    where = offset if isinstance(offset, int) else torch.tensor(offset, dtype=torch.long)
    (rows,) = table.parts(where, length, CPU, FLOAT)
    starts = torch.tensor(offset, dtype=torch.long)
    wanted = starts[..., None] + torch.arange(length)
    assert_same_bits(rows[..., 0], wanted.float())
    return rows


def test_rows_are_computed_once() -> None:
    table = Table(Counted())
    first = ask(table, 0, 7)
    assert ask(table, 0, 7) is first
    ask(table, 2, 5)
    ask(table, [1, 0, 4], 3)
    assert table.formula.asked == [(7,)]  # type: ignore[attr-defined]


def test_decoding_grows_by_doubling() -> None:
    table = Table(Counted())
    ask(table, 0, 10)
    for step in range(10, 1000):
        ask(table, step, 1)
    sizes = [shape[0] for shape in table.formula.asked]  # type: ignore[attr-defined]
    assert sizes == [10, 20, 40, 80, 160, 320, 640, 1280]


def test_padding_on_the_left_extends_them_downwards() -> None:
    table = Table(Counted())
    ask(table, 0, 10)
    ask(table, [-3, 0], 10)
    ask(table, -1, 3)
    assert len(table.formula.asked) == 2  # type: ignore[attr-defined]


def test_far_away_only_what_is_asked_is_computed() -> None:
    table = Table(Counted())
    ask(table, 10**9, 3)
    ask(table, 10**9 + 1, 2)
    ask(table, 5, 1)
    assert table.formula.asked == [(3,), (1,)]  # type: ignore[attr-defined]


def test_what_does_not_fit_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LARGEST", 40)
    table = Table(Counted())
    ask(table, 0, 21)
    ask(table, [0, 10**6], 2)
    ask(table, 0, 15)
    for step in range(15, 30):
        ask(table, step, 1)
    kept = table._kept[CPU, FLOAT].rows
    assert kept.numel() <= 40


def test_no_samples() -> None:
    assert ask(Table(Counted()), [], 4).shape == (0, 4, 2)


def test_equal_layers_share_one_table_while_one_lives() -> None:
    first, second = Rotary(14), Rotary(14)
    assert first._table is second._table
    assert Rotary(14, interleaved=True)._table is not first._table
    assert table_of(Counted("mine")) is not table_of(Counted("yours"))
    key = first._table.formula
    assert key in tables._tables
    del first, second
    gc.collect()
    assert key not in tables._tables


def test_dtypes_have_rows_of_their_own() -> None:
    rotary = Rotary(8)
    x = torch.randn(1, 1, 50, 8, dtype=torch.float64)
    exact = rotary(x)
    low = rotary(x.float())
    assert_same_bits(rotary(x), exact)
    torch.testing.assert_close(low.double(), exact, rtol=1e-5, atol=1e-5)

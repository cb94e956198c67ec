"""``Alibi``: its slopes, what it refuses, and that it stays as it is inside a model."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.bloom import modeling_bloom
from transformers.models.mpt import modeling_mpt

import headwise as hw
from headwise import ShapeError
from headwise.positions import Alibi

BLOOM: Any = modeling_bloom
MPT: Any = modeling_mpt


def test_the_slopes_of_eight_heads_halve() -> None:
    assert Alibi(8).slopes.tolist() == [2.0**-k for k in range(1, 9)]


def test_twelve_heads_take_those_of_eight_and_every_second_of_sixteen() -> None:
    sixteen = Alibi(16).slopes
    assert Alibi(12).slopes.tolist() == [*Alibi(8).slopes.tolist(), *sixteen[:8:2].tolist()]


@pytest.mark.parametrize("heads", [*range(1, 34), 40, 71, 112, 128])
def test_the_slopes_are_those_of_bloom(heads: int) -> None:
    """Bloom adds ``slope * j``, which differs from ``-slope * (i - j)`` by a constant a row."""
    theirs = BLOOM.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(Alibi(heads).slopes, theirs, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("heads", [2, 8, 32])
def test_the_slopes_are_those_of_mpt(heads: int) -> None:
    theirs = MPT.build_mpt_alibi_tensor(heads, 5)[:, 0, -2].neg()
    torch.testing.assert_close(Alibi(heads).slopes, theirs, rtol=1e-6, atol=0.0)


def test_slopes_of_ones_own() -> None:
    assert Alibi(3, [0.0, -1.0, 0.5]).slopes.tolist() == [0.0, -1.0, 0.5]
    assert Alibi(2, torch.tensor([0.25, 1.0])).slopes.tolist() == [0.25, 1.0]
    assert repr(Alibi(2)) == "Alibi(2)"
    assert repr(Alibi(2, [1.0, 0.5])) == "Alibi(2, slopes=[1.0, 0.5])"


@pytest.mark.parametrize("heads", [0, -1, 2.0, True, None])
def test_a_number_of_heads_that_is_none(heads: object) -> None:
    with pytest.raises(ShapeError) as refusal:
        Alibi(heads)  # type: ignore[arg-type]
    assert str(refusal.value) == (
        f"Alibi: num_heads must be an int of at least 1, got {heads!r}\n"
        "  hint: give the number of query heads"
    )


@pytest.mark.parametrize(
    ("slopes", "shape"), [([1.0], (1,)), (torch.ones(2, 1), (2, 1)), (torch.ones(()), ())]
)
def test_another_number_of_slopes(slopes: object, shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError) as refusal:
        Alibi(2, slopes)  # type: ignore[arg-type]
    assert str(refusal.value) == (
        f"Alibi: slopes must have the shape (2,), got {shape}\n"
        "  hint: give one slope per query head, or leave them out for the usual ones"
    )


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_slopes_are_finite(odd: float) -> None:
    with pytest.raises(ValueError, match="finite") as refusal:
        Alibi(2, [1.0, odd])
    assert str(refusal.value) == (
        f"Alibi: slopes must be finite, got {odd}\n"
        "  hint: a head without a bias has the slope 0.0; to close pairs, use a pattern"
    )


def test_slopes_are_not_learned() -> None:
    with pytest.raises(ValueError, match="constants") as refusal:
        Alibi(2, torch.ones(2, requires_grad=True))
    assert str(refusal.value) == (
        "Alibi: slopes must be constants, got a tensor that wants a gradient\n"
        "  hint: pass slopes.detach(); RelativeBias is a bias that is learned"
    )


def test_no_way_of_moving_a_model_changes_the_slopes() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), Alibi(6))
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    for moved in (
        model.to_empty(device="cpu"),
        model.to(torch.bfloat16),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
    ):
        alibi = moved[1]
        assert isinstance(alibi, Alibi)
        assert torch.equal(alibi.slopes, Alibi(6).slopes)
        assert alibi.slopes.dtype == torch.float32
        query = torch.randn(1, 6, 2, 4)
        assert hw.attend(query, query, query, bias=alibi).isfinite().all()

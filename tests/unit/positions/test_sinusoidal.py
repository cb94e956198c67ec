"""``Sinusoidal``: the paper's numbers, the other forms, and what it refuses."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from headwise import DtypeError, ShapeError
from headwise.positions import Sinusoidal
from tests.support.budget import assert_same_bits


def row(scheme: Sinusoidal, position: int) -> list[float]:
    found: list[float] = scheme(torch.zeros(1, scheme.d_model, dtype=torch.float64), position)[
        0
    ].tolist()
    return found


def near(wanted: list[float]) -> Any:
    return pytest.approx(wanted, rel=1e-14, abs=1e-14)


def test_the_papers_form_by_hand() -> None:
    slow = 3 / 100
    fast = [math.sin(3), math.cos(3)]
    assert row(Sinusoidal(4), 3) == near([*fast, math.sin(slow), math.cos(slow)])
    assert row(Sinusoidal(4), 0) == [0.0, 1.0, 0.0, 1.0]
    assert row(Sinusoidal(4), -3) == near([-fast[0], fast[1], -math.sin(slow), math.cos(slow)])


def test_sines_before_cosines() -> None:
    slow = 3 / 100
    wanted = [math.sin(3), math.sin(slow), math.cos(3), math.cos(slow)]
    assert row(Sinusoidal(4, interleaved=False), 3) == near(wanted)


def test_the_last_wave_included() -> None:
    """Six columns, base 16: the exponents are 0, 1/2 and 1."""
    scheme = Sinusoidal(6, 16.0, interleaved=False, inclusive=True, offset=2)
    waves = [3.0, 3 / 4, 3 / 16]
    wanted = [*map(math.sin, waves), *map(math.cos, waves)]
    assert row(scheme, 1) == near(wanted)


def test_odd_widths() -> None:
    fifth = [3 / 10000 ** (k / 5) for k in (0, 2, 4)]
    sines, cosines = [math.sin(w) for w in fifth], [math.cos(w) for w in fifth]
    paper = [sines[0], cosines[0], sines[1], cosines[1], sines[2]]
    assert row(Sinusoidal(5), 3) == near(paper)
    assert row(Sinusoidal(5, interleaved=False), 3) == near([*sines, *cosines[:2]])
    included = [math.sin(3), math.sin(0.0003), math.cos(3), math.cos(0.0003), 0.0]
    assert row(Sinusoidal(5, interleaved=False, inclusive=True), 3) == near(included)
    assert row(Sinusoidal(1), 3) == near([math.sin(3)])


def test_each_sample_stands_where_its_offset_says() -> None:
    scheme, x = Sinusoidal(6), torch.randn(2, 3, 5, 6)
    found = scheme(x, torch.arange(6))
    for sample in range(6):
        one = x.flatten(0, 1)[sample]
        assert_same_bits(found.flatten(0, 1)[sample], scheme(one, sample))
    assert_same_bits(scheme(x[0, 0], torch.tensor([4])), scheme(x[0, 0], 4))


def test_low_precision_is_rounded_once() -> None:
    x = torch.randn(2, 5, 6).bfloat16()
    found = Sinusoidal(6)(x, 100)
    assert_same_bits(found, Sinusoidal(6)(x.float(), 100).bfloat16())


def test_nothing_of_it_is_state_and_no_move_changes_it() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 6), Sinusoidal(6))
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    x = torch.randn(1, 9, 6)
    wanted = Sinusoidal(6)(x, 70_000)
    for moved in (
        model.to_empty(device="cpu"),
        model.half(),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
    ):
        assert_same_bits(moved[1](x, 70_000), wanted)
    assert Sinusoidal(6)(x.to("meta")).is_meta


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)], ids=str)
def test_sizes_of_0(shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, 6, requires_grad=True)
    for offset in (3, torch.ones(shape[0], dtype=torch.long)):
        (gradient,) = torch.autograd.grad(Sinusoidal(6)(x, offset).sum(), x)
        assert gradient.shape == x.shape


@pytest.mark.parametrize(
    "shown",
    ["Sinusoidal(6)", "Sinusoidal(6, base=16.0, interleaved=False, inclusive=True, offset=2)"],
)
def test_it_says_what_it_is(shown: str) -> None:
    assert repr(eval(shown)) == shown


REFUSED: list[tuple[dict[str, Any], type[Exception], str, str]] = [
    (
        {"d_model": 0},
        ShapeError,
        "d_model must be an int of at least 1, got 0",
        "give the width of the model",
    ),
    (
        {"d_model": 3, "interleaved": False, "inclusive": True},
        ShapeError,
        "d_model must be an int of at least 4, got 3",
        "give the width of the model",
    ),
    (
        {"d_model": 6, "base": 0.5},
        ValueError,
        "base must be a finite number above 1, got 0.5",
        "it is 10000.0 in the paper",
    ),
    (
        {"d_model": 6, "inclusive": True},
        ValueError,
        "inclusive is a form of sines before cosines, got interleaved=True",
        "pass interleaved=False, as Whisper and fairseq lay them out",
    ),
    (
        {"d_model": 6, "offset": 1.5},
        ShapeError,
        "offset must be an int, got 1.5",
        "it is added to every position; fairseq's models have 2",
    ),
]


@pytest.mark.parametrize(("given", "kind", "problem", "hint"), REFUSED)
def test_what_makes_no_sense_is_refused(
    given: dict[str, Any], kind: type[Exception], problem: str, hint: str
) -> None:
    with pytest.raises(kind) as refusal:
        Sinusoidal(**given)
    assert str(refusal.value) == f"Sinusoidal: {problem}\n  hint: {hint}"


def test_tokens_of_another_width_or_kind() -> None:
    with pytest.raises(ShapeError) as refusal:
        Sinusoidal(6)(torch.ones(2, 3, 4))
    assert str(refusal.value) == (
        "Sinusoidal: x must be (…, length, d_model) with a d_model of 6\n"
        "  x  (2, 3, 4) torch.float32 cpu\n  hint: positions are added before the heads are split"
    )
    with pytest.raises(DtypeError) as other:
        Sinusoidal(6)(torch.ones(2, 6, dtype=torch.long))
    assert str(other.value) == (
        "Sinusoidal: x must be floating-point\n  x  (2, 6) torch.int64 cpu\n"
        "  hint: embed the tokens before"
    )

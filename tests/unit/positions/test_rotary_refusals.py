"""What ``Rotary`` refuses, with the whole text."""

from typing import Any

import pytest
import torch

from headwise import DtypeError, ShapeError
from headwise.positions import Rotary

ORIGINAL = {"original_max_position_embeddings": 32}
KINDS = "there are 'default', 'linear', 'dynamic', 'yarn', 'longrope', 'llama3', 'proportional'"
UNKNOWN = "see the model's configuration for it"
TRAINED = (
    "it is the longest text of the training, in tokens; for 'dynamic' that is "
    "max_position_embeddings of a transformers configuration"
)
FORMER = (
    "Phi-3's first configurations say so; write 'longrope', and give "
    "'original_max_position_embeddings' and 'factor', which stand beside the scaling there"
)
LONGER = "it is how many times longer the texts are than those of the training"
LLAMA = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, **ORIGINAL}

SCALINGS: list[tuple[Any, str, str]] = [
    (
        "linear",
        "scaling must be a mapping or None, got str",
        "write it as transformers does: {'rope_type': 'linear', 'factor': 2.0}",
    ),
    ({"factor": 2.0}, "scaling must name one 'rope_type', got none", KINDS),
    (
        {"rope_type": "linear", "type": "yarn"},
        "scaling must name one 'rope_type', got 'linear' and 'yarn'",
        KINDS,
    ),
    ({"rope_type": "axial"}, "scaling['rope_type'] must be a known kind, got 'axial'", KINDS),
    ({"rope_type": ["linear"]}, "scaling['rope_type'] must be a known kind, got ['linear']", KINDS),
    (
        {"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
        "scaling['rope_type'] must be a known kind, got 'su'",
        FORMER,
    ),
    (
        {"type": "yarn", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
        "scaling of kind 'yarn' knows no lists of factors, got 'short_factor', 'long_factor'",
        FORMER,
    ),
    (
        {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "scaling must be that of one kind of layers, got those of 'full_attention', "
        "'sliding_attention'",
        "pass the entry of this layer, such as scaling['full_attention'], and its 'rope_theta' as "
        "base",
    ),
    ({"rope_type": "linear"}, "scaling of kind 'linear' needs 'factor', got none", LONGER),
    (
        {"rope_type": "linear", "factor": None},
        "scaling of kind 'linear' needs 'factor', got none",
        LONGER,
    ),
    (
        {"rope_type": "dynamic", "factor": 2.0},
        "scaling of kind 'dynamic' needs 'original_max_position_embeddings', got 'factor'",
        TRAINED,
    ),
    (
        {"rope_type": "linear", "factor": 2.0, "mrope_section": [1, 2]},
        "scaling of kind 'linear' knows no key 'mrope_section'",
        "it takes 'factor', 'rope_theta', 'partial_rotary_factor'",
    ),
    (
        {"rope_type": "linear", "factor": 0.5},
        "scaling['factor'] must be a finite number of at least 1, got 0.5",
        LONGER,
    ),
    (
        {"rope_type": "linear", "factor": float("nan")},
        "scaling['factor'] must be a finite number of at least 1, got nan",
        LONGER,
    ),
    (
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32.0},
        "scaling['original_max_position_embeddings'] must be an int of at least 2, got 32.0",
        TRAINED,
    ),
    (
        {"rope_type": "yarn", "factor": 2.0, **ORIGINAL, "truncate": 1},
        "scaling['truncate'] must be True or False, got 1",
        UNKNOWN,
    ),
    (
        {"rope_type": "yarn", "factor": 2.0, **ORIGINAL, "beta_fast": 0.5},
        "scaling['beta_fast'] must be at least scaling['beta_slow'], got 0.5 and 1",
        "where they are left out they are 32 and 1",
    ),
    (
        {"rope_type": "yarn", "factor": 2.0, **ORIGINAL, "mscale": -1},
        "scaling['mscale'] must be a finite number of at least 0, got -1",
        UNKNOWN,
    ),
    (
        {**LLAMA, **ORIGINAL, "low_freq_factor": 4.0},
        "scaling['low_freq_factor'] must be below scaling['high_freq_factor'], got 4.0 and 4.0",
        "Llama 3.1 has 1.0 and 4.0",
    ),
    (
        LONG,
        "scaling of kind 'longrope' needs 'factor' or 'attention_factor', got 'short_factor', "
        "'long_factor', 'original_max_position_embeddings'",
        "factor is max_position_embeddings / original_max_position_embeddings of a transformers "
        "configuration",
    ),
    (
        {**LONG, "factor": 2.0, "short_factor": [1.0] * 3},
        "scaling['short_factor'] must hold a number for each of 4 pairs of columns, got 3",
        "there are rotary_dim / 2 pairs",
    ),
    (
        {**LONG, "factor": 2.0, "long_factor": [1.0, 1.0, 1.0, 0.0]},
        "scaling['long_factor'] must be a list of finite numbers above 0, got [1.0, 1.0, 1.0, 0.0]",
        UNKNOWN,
    ),
    (
        {"rope_type": "default", "rope_theta": 5e5},
        "scaling['rope_theta'] must agree with base, got 500000.0 and 10000.0",
        "pass base=500000.0, or leave 'rope_theta' out",
    ),
    (
        {"rope_type": "default", "partial_rotary_factor": 0.5},
        "scaling['partial_rotary_factor'] must agree with rotary_dim, got 0.5 of 8 columns and 8",
        "pass rotary_dim=4, or leave 'partial_rotary_factor' out",
    ),
]


@pytest.mark.parametrize(("scaling", "problem", "hint"), SCALINGS, ids=lambda text: str(text)[:40])
def test_scalings_that_make_no_sense(scaling: Any, problem: str, hint: str) -> None:
    with pytest.raises(ValueError, match="Rotary") as refusal:
        Rotary(8, scaling=scaling)
    assert str(refusal.value) == f"Rotary: {problem}\n  hint: {hint}"


@pytest.mark.parametrize(
    ("kind", "width", "problem", "hint"),
    [
        (
            {"rope_type": "proportional"},
            4,
            "scaling of kind 'proportional' turns whole heads, got rotary_dim=4 of 8",
            "leave rotary_dim out; 'partial_rotary_factor' says how many pairs turn",
        ),
        (
            {"rope_type": "dynamic", "factor": 2.0, **ORIGINAL},
            2,
            "scaling of kind 'dynamic' needs a rotary_dim of at least 4, got 2",
            "it raises the base to the power of rotary_dim / (rotary_dim - 2)",
        ),
    ],
)
def test_scalings_of_another_width(kind: Any, width: int, problem: str, hint: str) -> None:
    with pytest.raises(ValueError, match="Rotary") as refusal:
        Rotary(8, scaling=kind, rotary_dim=width)
    assert str(refusal.value) == f"Rotary: {problem}\n  hint: {hint}"


@pytest.mark.parametrize("head_dim", [1, 0, 4.0, True, None])
def test_a_head_dim_that_is_none(head_dim: Any) -> None:
    with pytest.raises(ShapeError) as refusal:
        Rotary(head_dim)
    assert str(refusal.value) == (
        f"Rotary: head_dim must be an int of at least 2, got {head_dim!r}\n"
        "  hint: give the number of columns of a head"
    )


@pytest.mark.parametrize(("head_dim", "width"), [(7, None), (8, 3), (8, 10), (8, 0), (8, 4.0)])
def test_a_width_that_is_no_pairs(head_dim: int, width: Any) -> None:
    with pytest.raises(ShapeError) as refusal:
        Rotary(head_dim, rotary_dim=width)
    assert str(refusal.value) == (
        f"Rotary: rotary_dim must be an even int from 2 to head_dim={head_dim}, "
        f"got {head_dim if width is None else width!r}\n"
        "  hint: columns turn in pairs; those past rotary_dim stay as they are"
    )


@pytest.mark.parametrize("base", [1.0, 0, -3.0, float("inf"), float("nan"), "10000", True])
def test_a_base_that_makes_no_waves(base: Any) -> None:
    with pytest.raises(ValueError, match="base") as refusal:
        Rotary(8, base)
    assert str(refusal.value) == (
        f"Rotary: base must be a finite number above 1, got {base!r}\n"
        "  hint: it is 10000.0 in the paper, and rope_theta in transformers"
    )


def test_interleaved_is_a_flag() -> None:
    with pytest.raises(TypeError) as refusal:
        Rotary(8, interleaved="yes")  # type: ignore[arg-type]
    assert str(refusal.value) == (
        "Rotary: interleaved must be True or False, got 'yes'\n"
        "  hint: True for pairs of neighbouring columns"
    )


INPUTS: list[tuple[torch.Tensor, str]] = [
    (torch.ones(2, 3, 5, 6), "  x  (2, 3, 5, 6) torch.float32 cpu"),
    (torch.ones(5, 8), "  x  (5, 8) torch.float32 cpu"),
]


@pytest.mark.parametrize(("x", "row"), INPUTS)
def test_other_shapes(x: torch.Tensor, row: str) -> None:
    with pytest.raises(ShapeError) as refusal:
        Rotary(8)(x)
    assert str(refusal.value) == (
        "Rotary: x must be (…, heads, length, head_dim) with a head_dim of 8\n"
        f"{row}\n  hint: split the heads before turning; one head has an axis of 1"
    )


def test_integers_are_not_turned() -> None:
    with pytest.raises(DtypeError) as refusal:
        Rotary(8)(torch.ones(2, 3, 5, 8, dtype=torch.long))
    assert str(refusal.value) == (
        "Rotary: x must be floating-point\n  x  (2, 3, 5, 8) torch.int64 cpu\n"
        "  hint: convert it with .to(dtype)"
    )


@pytest.mark.parametrize("length", [-1, 2.0, True])
def test_at_length_takes_a_number_of_tokens(length: Any) -> None:
    with pytest.raises(ShapeError) as refusal:
        Rotary(8).at_length(length)
    assert str(refusal.value) == (
        f"Rotary.at_length: length must be an int of at least 0, got {length!r}\n"
        "  hint: give the number of tokens of the whole text"
    )


@pytest.mark.parametrize("scaling", [None, {"rope_type": "dynamic", "factor": 2.0, **ORIGINAL}])
@pytest.mark.parametrize(
    ("length", "text"),
    [
        ("seven", "Rotary: length must be an int or a tensor of integers, got str"),
        (7.0, "Rotary: length must be an int or a tensor of integers, got float"),
        (torch.tensor([7.0, 7.0]), "Rotary: length must hold integers, got torch.float32"),
    ],
)
def test_a_length_is_checked_where_it_is_not_read(scaling: Any, length: Any, text: str) -> None:
    with pytest.raises(DtypeError) as refusal:
        Rotary(8, scaling=scaling)(torch.ones(2, 3, 5, 8), length=length)
    assert str(refusal.value).startswith(f"{text}\n  hint: ")

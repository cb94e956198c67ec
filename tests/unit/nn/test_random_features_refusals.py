"""What random features refuse, and in which words."""

from typing import Any

import pytest
import torch

import headwise as hw
from headwise.nn import RandomFeatures


def test_a_width_must_be_known_before_graphs_and_transforms() -> None:
    message = (
        "RandomFeatures: head_dim must be known before a module is compiled, exported or "
        "transformed by torch.func\n  hint: make it with RandomFeatures(count, head_dim=4)"
    )
    with pytest.raises(RuntimeError) as caught:
        torch.vmap(RandomFeatures(6))(torch.randn(3, 4))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        (
            {"count": 0},
            hw.ShapeError,
            "RandomFeatures: count must be an int of at least 1, got 0\n"
            "  hint: 2 to 4 times head_dim is a usual count; more lowers the error",
        ),
        (
            {"head_dim": 2.0},
            hw.ShapeError,
            "RandomFeatures: head_dim must be an int of at least 1, got 2.0\n"
            "  hint: it is the width of a head's queries and keys; None = that of the first input",
        ),
        (
            {"count": 7, "kernel": "hyperbolic"},
            hw.ShapeError,
            "RandomFeatures: count must be even for kernel='hyperbolic', whose features come in "
            "pairs, got 7\n  hint: pass count=8",
        ),
        (
            {"kernel": "elu"},
            ValueError,
            "RandomFeatures: kernel must be one of 'softmax', 'hyperbolic', 'relu', got 'elu'\n"
            "  hint: other maps are feature_map= of LinearAttention",
        ),
        (
            {"scale": -1.0},
            ValueError,
            "RandomFeatures: scale must be a finite number of at least 0, got -1.0\n"
            "  hint: for a negative one, give queries the other sign",
        ),
        (
            {"scale": "x"},
            ValueError,
            "RandomFeatures: scale must be a finite number of at least 0, got 'x'\n"
            "  hint: for a negative one, give queries the other sign",
        ),
        (
            {"scale": True},
            ValueError,
            "RandomFeatures: scale must be a finite number of at least 0, got True\n"
            "  hint: for a negative one, give queries the other sign",
        ),
        (
            {"seed": -1},
            ValueError,
            "RandomFeatures: seed must be an int from 0 to 2**63 - 1, got -1\n"
            "  hint: any of them will do; layers should have different ones",
        ),
    ],
)
@pytest.mark.usefixtures("plain_calls")
def test_settings_are_checked(named: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        RandomFeatures(**{"count": 8} | named)
    assert str(caught.value) == message


@pytest.mark.usefixtures("plain_calls")
def test_inputs_are_checked() -> None:
    made = RandomFeatures(8, 4)
    with pytest.raises(hw.ShapeError) as caught:
        made(torch.randn(3, 5))
    assert str(caught.value) == (
        "RandomFeatures: the last dimension must be head_dim=4\n"
        "  x  (3, 5) torch.float32 cpu\n"
        "  hint: give each head_dim an object of its own"
    )
    with pytest.raises(hw.DtypeError, match="inputs must be floating-point numbers"):
        made(torch.ones(3, 4, dtype=torch.long))
    with pytest.raises(hw.ShapeError) as caught:
        made.fit(head_dim=5)
    assert str(caught.value) == (
        "RandomFeatures: head_dim must be that of the layer, got 4 and 5\n"
        "  hint: leave head_dim out, and give each layer an object of its own"
    )
    with pytest.raises(ValueError, match="seed must be an int"):
        made.redraw(seed=-1)

"""B36: a window was lost when no other mask came with it; a window of 0 closed every row."""

import pytest
import torch

import headwise as hw
from headwise.patterns import Fixed, Pattern, bigbird, longformer, sliding_causal
from tests.support.budget import assert_same_bits
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_all_once, on_layers
from tests.support.shapes import Sizes, inputs
from tests.support.whole_calls import judged_whole, simple

SIZES = Sizes(2, 2, 1, 8, 8, 8, 8)
GAP = torch.arange(8).view(-1, 1) - torch.arange(8)
BANDS: list[tuple[Pattern, torch.Tensor]] = [
    (sliding_causal(3), (GAP >= 0) & (GAP < 3)),
    (hw.Window(1, 1), GAP.abs() <= 1),
    (hw.Window(2, 0, dilation=2), (GAP >= 0) & (GAP <= 4) & (GAP % 2 == 0)),
    (hw.Strided(3), (GAP.abs() < 3) | (GAP % 3 == 0)),
    (longformer(2, [0]), (GAP.abs() <= 1) | torch.ones(8, 8).tril(-8).bool()),
]
BANDS[-1][1][0] = True
BANDS[-1][1][:, 0] = True
EVERYWHERE = [
    *(sliding_causal(8), sliding_causal(99), hw.Causal() & hw.Window(None, 0)),
    *(hw.Causal() & hw.Window(7, 7), hw.Causal() & hw.BlockWindow(3, None, None)),
    *(hw.Causal() & hw.BlockWindow(8, 0, 0), hw.Causal() & hw.Strided(8)),
    *(hw.Causal() & Fixed(8), hw.Causal() & longformer(16), hw.Causal() & hw.Strided(1)),
]
SELF = [
    *(hw.Window(0, 0), hw.Window(0, 0, 5), hw.Strided(4), Fixed(3), hw.BlockWindow(3, 0, 0)),
    *(longformer(1), bigbird(2, 1, 0, 0), sliding_causal(1)),
]


@on_all_once
@pytest.mark.parametrize(("pattern", "visible"), BANDS, ids=lambda x: repr(x)[:40])
def test_alone_in_training(path: Path, pattern: Pattern, visible: torch.Tensor) -> None:
    call = simple(SIZES, pattern=pattern)
    spelled = call.visible()
    assert spelled is not None
    assert torch.equal(spelled, visible)
    judged_whole(path, call)


@on_layers
@pytest.mark.parametrize("train", [True, False])
def test_alone_in_a_layer(path: Path, train: bool) -> None:
    layer = hw.MultiHeadAttention(8, 2, pattern=sliding_causal(3)).train(train)
    x = torch.randn(1, 8, 8)
    spoiled = x.clone()
    spoiled[:, :3] = 9.0
    with path.taken():
        assert_same_bits(layer(spoiled)[:, 5:], layer(x)[:, 5:])
        assert not torch.equal(layer(spoiled)[:, 4], layer(x)[:, 4])


@on_all
@pytest.mark.parametrize("pattern", EVERYWHERE, ids=repr)
def test_wider_than_the_sequence_is_causal(path: Path, pattern: Pattern) -> None:
    judged(path, *inputs(SIZES), pattern, visible=GAP >= 0)


@pytest.mark.parametrize("build", [sliding_causal, longformer, hw.Strided, Fixed])
def test_a_window_of_nothing_is_refused(build: type[Pattern]) -> None:
    with pytest.raises(hw.PatternError, match="must be an int of at least 1, got 0"):
        build(0)  # type: ignore[call-arg]


@on_all_once
@pytest.mark.parametrize("pattern", SELF, ids=repr)
def test_the_smallest_window_still_holds_the_token_itself(path: Path, pattern: Pattern) -> None:
    assert pattern.dense(8, 8).diagonal().all()
    with path.taken() as backend:
        output = hw.attend(*inputs(SIZES), pattern, backend=backend)
    assert (output.abs().sum(-1) > 0).all()

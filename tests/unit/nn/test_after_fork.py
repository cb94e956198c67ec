"""Layers in the child of a fork, where torch's threads are gone: they must not wait for them."""

import multiprocessing
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import headwise as hw

WIDTH = 512


def hooked() -> nn.Module:
    layer = hw.MultiHeadAttention(WIDTH, 8)
    layer.W_q.register_forward_hook(lambda *_: None)
    return layer


def block() -> nn.Module:
    return hw.nn.TransformerBlock(hw.MultiHeadAttention(WIDTH, 8), hw.nn.FeedForward(WIDTH))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "norms": lambda: hw.MultiHeadAttention(WIDTH, 8, qk_norm=True),
    "a hook": hooked,
    "a block": block,
    "feed-forward": lambda: hw.nn.FeedForward(WIDTH, activation="gelu"),
    "longformer": lambda: hw.nn.LongformerAttention(WIDTH, 8, window=32),
}


def compare(layer: nn.Module, x: Tensor, wanted: Tensor) -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        worst = (run(layer, x) - wanted).abs().max().item()
    assert worst < 1e-4


def run(layer: nn.Module, x: Tensor) -> Tensor:
    """Run a layer on the threads that torch believes it has."""
    torch.set_num_threads(2)
    with torch.no_grad():
        found: Tensor = layer(x)
    torch.set_num_threads(1)
    return found


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", LAYERS)
def test_a_child_computes_what_its_parent_does(kind: str) -> None:
    before = torch.get_num_threads()
    try:
        layer, x = LAYERS[kind]().eval(), torch.randn(2, 64, WIDTH)
        wanted = run(layer, x)
        child = multiprocessing.get_context("fork").Process(target=compare, args=(layer, x, wanted))
        child.start()
        child.join(30)
        ended = child.exitcode
        if ended is None:
            child.kill()
        assert ended == 0
    finally:
        torch.set_num_threads(before)

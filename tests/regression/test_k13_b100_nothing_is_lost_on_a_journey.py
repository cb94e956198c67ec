"""B100: moving a structured mask to another device dropped its causal part."""

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch

import headwise as hw
from headwise.patterns import Pattern
from tests.unit.patterns.test_draws import DRAWN

PACKED = hw.Documents.from_cu_seqlens([0, 2, 4]) & hw.Causal()
MASK = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def saved(thing: object) -> object:
    """Send it through a file, as torch keeps things."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


JOURNEYS: dict[str, Callable[[Pattern], object]] = {
    "a device": lambda p: p.to("cpu"),
    "another device": lambda p: p.to(device="cuda:1"),
    "no device": lambda p: p.to("meta"),
    "a dtype": lambda p: p.to(torch.float16),
    "both": lambda p: p.to("cpu", torch.int64, non_blocking=True, copy=True),
    "a pickle": lambda p: pickle.loads(pickle.dumps(p)),
    "an old pickle": lambda p: pickle.loads(pickle.dumps(p, protocol=2)),
    "a deep copy": copy.deepcopy,
    "a copy": copy.copy,
    "a file": saved,
    "a written form": lambda p: hw.patterns.spelling.read(*hw.patterns.spelling.spell(p)),
}


@pytest.mark.parametrize("journey", JOURNEYS)
def test_packed_and_causal(journey: str) -> None:
    again = JOURNEYS[journey](PACKED)
    assert isinstance(again, Pattern)
    assert type(again) is type(PACKED)
    assert again == PACKED
    assert again.dense(4, 4).int().tolist() == MASK


@pytest.mark.parametrize("journey", JOURNEYS)
def test_every_kind(journey: str) -> None:
    for pattern, q_len, kv_len, picture in DRAWN:
        for before in (pattern, pattern & hw.Causal(), ~pattern):
            again = JOURNEYS[journey](before)
            assert isinstance(again, Pattern)
            assert type(again) is type(before)
            assert (again, hash(again)) == (before, hash(before))
            assert again.draw(q_len, kv_len) == before.draw(q_len, kv_len)
        assert pattern.draw(q_len, kv_len) == picture


@pytest.mark.parametrize(
    "journey",
    [
        lambda layer: layer.double().float(),
        lambda layer: layer.to("cpu", torch.bfloat16).to(torch.float32),
        lambda layer: layer.to("meta").to_empty(device="cpu"),
        copy.deepcopy,
        saved,
    ],
)
def test_a_layer_takes_its_pattern_along(
    journey: Callable[[hw.MultiHeadAttention], hw.MultiHeadAttention],
) -> None:
    layer = hw.MultiHeadAttention(8, 2, pattern=PACKED)
    weights = copy.deepcopy(layer.state_dict())
    again = journey(copy.deepcopy(layer)).eval()
    again.load_state_dict(weights)
    x = torch.randn(1, 4, 8)
    assert again.pattern == PACKED
    torch.testing.assert_close(again(x), layer.eval()(x))


def test_one_sample_of_many() -> None:
    ids = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    many = hw.Documents(ids) & hw.Causal()
    for sample in range(2):
        one = many.sample(sample, 0)
        assert type(one) is type(many)
        assert torch.equal(one.dense(4, 4), many.dense(4, 4)[sample, 0])

"""Packed copies of weights: made once, made anew, counted, shared after a fork, and let go."""

import copy
import gc
import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise as hw
from headwise.ops.projection import choice, explain_linear, linear, packed
from headwise.ops.projection.packed import packed as packed_copy
from tests.support.budget import assert_same_bits, assert_within_budget

ROWS = 67


@pytest.fixture(autouse=True)
def processor_like_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_is_intel", lambda: False)


@pytest.fixture
def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(257, 131)


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(ROWS, 257)


def used(layer: nn.Linear, x: Tensor) -> Tensor:
    """Run in inference, and hold the result against the definition."""
    with torch.inference_mode():
        found = linear(x, layer.weight, layer.bias)
        assert explain_linear(x, layer.weight, layer.bias).packed
        plain = functional.linear(x, layer.weight, layer.bias)
        exact = functional.linear(x.double(), layer.weight.double(), layer.bias.double())
    assert_within_budget(found, exact=exact, plain=plain, label="packed")
    return found


def test_a_weight_is_packed_once(layer: nn.Linear, x: Tensor) -> None:
    used(layer, x)
    first = packed_copy(layer.weight)
    used(layer, x)
    used(layer, x[:41])
    assert packed_copy(layer.weight) is first


def test_a_change_of_one_row_of_a_weight_that_lies_the_other_way_round_is_seen(
    x: Tensor,
) -> None:
    owner = nn.Parameter(torch.randn(257, 131))
    with torch.inference_mode():
        linear(x, owner.t())
    for part in (owner.data[5], owner.data[:, 7]):
        part.mul_(3)
        with torch.inference_mode():
            found, plain = linear(x, owner.t()), functional.linear(x, owner.t())
            exact = functional.linear(x.double(), owner.t().double())
        assert_within_budget(found, exact=exact, plain=plain, label="changed")


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.weight.mul_(2),
        lambda layer: layer.weight.data.mul_(2),
        lambda layer: setattr(layer.weight, "data", torch.randn(131, 257)),
        lambda layer: layer.load_state_dict(nn.Linear(257, 131).state_dict()),
        lambda layer: layer.load_state_dict(nn.Linear(257, 131).state_dict(), assign=True),
        lambda layer: setattr(layer, "weight", nn.Parameter(torch.randn(131, 257))),
        lambda layer: nn.init.zeros_(layer.weight),
        lambda layer: layer.weight.data.copy_(layer.weight.data.flip(0)),
        lambda layer: layer.weight[3:9].zero_(),
    ],
)
def test_a_change_is_seen(layer: nn.Linear, x: Tensor, change: object) -> None:
    used(layer, x)
    with torch.no_grad():
        change(layer)  # type: ignore[operator]
    used(layer, x)


def test_training_between_calls_is_seen(layer: nn.Linear, x: Tensor) -> None:
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        used(layer, x)
        layer(x).square().sum().backward()
        optimizer.step()
    used(layer, x)


def test_parts_of_a_weight_have_copies_of_their_own(x: Tensor) -> None:
    weight = nn.Parameter(torch.randn(3 * 131, 257))
    with torch.inference_mode():
        for part in weight.chunk(3):
            kept = packed_copy(part)
            assert packed_copy(part) is kept
        for n, part in enumerate(weight.chunk(3)):
            assert packed_copy(part) is packed_copy(weight[131 * n : 131 * (n + 1)])
            exact = functional.linear(x.double(), part.double())
            assert_within_budget(
                linear(x, part), exact=exact, plain=functional.linear(x, part), label=str(n)
            )
        assert packed.bytes_of(weight) >= weight.nbytes


def test_bytes_are_counted_and_given_back(layer: nn.Linear, x: Tensor) -> None:
    assert hw.nn.packed_bytes(layer) == 0
    used(layer, x)
    assert hw.nn.packed_bytes(layer) >= layer.weight.nbytes
    before = len(packed._kept)
    del layer.weight
    gc.collect()
    assert len(packed._kept) < before


def test_copies_are_no_state(layer: nn.Linear, x: Tensor) -> None:
    used(layer, x)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    assert file.tell() < 2 * layer.weight.nbytes
    other = copy.deepcopy(layer)
    assert hw.nn.packed_bytes(other) == 0
    assert_same_bits(used(other, x), used(layer, x))


def test_weights_whose_changes_are_not_seen_are_not_packed(x: Tensor) -> None:
    with torch.inference_mode():
        made_there = torch.randn(131, 257)
        assert not explain_linear(x, made_there).packed
        assert explain_linear(x, made_there).library == "onednn"
        before = linear(x, made_there)
        made_there.mul_(2)
        torch.testing.assert_close(linear(x, made_there), 2 * before)
    shared = torch.randn(131, 257)
    shared.untyped_storage().share_memory_()
    assert not explain_linear(x, shared).packed


def test_unpacked_keeps_no_copy(layer: nn.Linear, x: Tensor) -> None:
    with torch.inference_mode(), hw.nn.projections("unpacked"):
        linear(x, layer.weight, layer.bias)
        assert explain_linear(x, layer.weight).library == "onednn"
    assert hw.nn.packed_bytes(layer) == 0


def test_a_child_uses_the_copy_of_its_parent(layer: nn.Linear, x: Tensor) -> None:
    wanted = used(layer, x)
    kept = packed_copy(layer.weight)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with torch.inference_mode():
            same = torch.equal(linear(x, layer.weight, layer.bias), wanted)
            few = linear(x[:1], layer.weight, layer.bias).isfinite().all()
        os.write(writing, b"well" if same and few and packed_copy(layer.weight) is kept else b"no")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 4) == b"well"


def test_two_threads_agree(layer: nn.Linear, x: Tensor) -> None:
    wanted = used(layer, x)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                few = linear(x[:3], layer.weight, layer.bias)
                torch.testing.assert_close(linear(x, layer.weight, layer.bias), wanted)
                torch.testing.assert_close(few, wanted[:3])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("width", [1024, 2048, 4096])
def test_writing_a_part_through_data_is_seen(width: int) -> None:
    """A step that fits the width met a quarter of the columns alone."""
    weight = nn.Parameter(torch.randn(width, width))
    head = width // 32
    parts = [
        *((slice(None), slice(head * n, head * (n + 1))) for n in range(32)),
        *((slice(n, None, 2), slice(None)) for n in range(2)),
        *((slice(n, None, 4), slice(None)) for n in range(4)),
        *((slice(head * n, head * (n + 1)), slice(None)) for n in range(32)),
        (slice(width // 8), slice(width // 8)),
    ]
    for part in parts:
        before = packed._sample(weight).clone()
        weight.data[part].mul_(-1)
        assert not torch.equal(packed._sample(weight), before), part


def test_copies_of_what_is_trained_are_given_back(layer: nn.Linear, x: Tensor) -> None:
    used(layer, x)
    assert hw.nn.packed_bytes(layer) > 0
    linear(x, layer.weight, layer.bias)  # with gradients
    assert hw.nn.packed_bytes(layer) == 0
    used(layer, x)
    layer.requires_grad_(False)
    linear(x.requires_grad_(), layer.weight, layer.bias)
    assert hw.nn.packed_bytes(layer) > 0
    hw.nn.release_packed(layer)
    assert hw.nn.packed_bytes(layer) == 0


def test_copies_of_parts_are_bounded(x: Tensor) -> None:
    weight = nn.Parameter(torch.randn(400, 257))
    with torch.inference_mode():
        linear(x, weight[:131])
        one = packed.bytes_of(weight)
        for first in range(40):
            linear(x, weight[first : first + 131])
    assert one < packed.bytes_of(weight) <= 8 * one
    with torch.no_grad():
        weight.add_(1)
        linear(x, weight[:131])
    assert packed.bytes_of(weight) == one


def test_experts_of_one_weight_are_packed_once(x: Tensor) -> None:
    weight = nn.Parameter(torch.randn(20, 131, 257))
    with torch.inference_mode():
        first = [packed_copy(expert) for expert in weight]
        again = [packed_copy(expert) for expert in weight]
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_threads_pack_and_change_one_weight() -> None:
    weight = nn.Parameter(torch.randn(6 * 64, 65))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def pack(part: int) -> None:
        with torch.no_grad():
            for _ in range(200):
                packed_copy(weight[64 * part : 64 * (part + 1)])

    def change(_: int) -> None:
        with torch.no_grad():
            for _ in range(200):
                weight.mul_(1.0001)

    try:
        with ThreadPoolExecutor(7) as threads:
            tasks = [threads.submit(pack if n else change, n) for n in range(6)]
            for task in tasks:
                task.result()
    finally:
        sys.setswitchinterval(before)
    copy_of_now = packed_copy(weight[:64])
    wanted = torch.ops.mkldnn._reorder_linear_weight(weight[:64].detach(), None)
    assert torch.equal(copy_of_now.to_dense(), wanted.to_dense())


@pytest.mark.parametrize("shape", [(257, 131), (64, 300), (2048, 2048), (768, 3072), (1, 50)])
def test_every_row_and_every_column_is_looked_at(shape: tuple[int, int]) -> None:
    weight = torch.zeros(shape)
    for axis in (0, 1):
        for n in range(shape[axis]):
            weight.select(axis, n).fill_(1)
            assert packed._sample(weight).any(), (axis, n)
            weight.select(axis, n).zero_()

"""The bits of dropout, and what they do to the weights."""

import math

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.ops.softmax.dropout import draw_seed, keep, philox, threshold
from tests.support.budget import assert_same_bits
from tests.support.paths import Path, on_native
from tests.support.shapes import Sizes, inputs

KNOWN = [
    ((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
LENGTH = 64


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_published_answers(counter: tuple[int, ...], key: tuple[int, ...], words: str) -> None:
    a, b, c, d = (torch.tensor(word) for word in counter)
    first, second = (torch.tensor(word) for word in key)
    assert " ".join(f"{int(word):08x}" for word in philox((a, b, c, d), (first, second))) == words


def test_each_pair_reads_its_own_word() -> None:
    """Pair by pair: counter (query, key // 4, head, sample), word ``key % 4``, low half first."""
    seed, share, shape = 0x1234_5678_9ABC_DEF0, 0.4, (2, 3, 4, 7)
    mask = keep(torch.tensor([seed]), share, shape)
    assert mask.shape == shape
    halves = torch.tensor(seed & 0xFFFFFFFF), torch.tensor(seed >> 32)
    for b, h, i, j in torch.ones(shape).nonzero().tolist():
        counter = (torch.tensor(i), torch.tensor(j // 4), torch.tensor(h), torch.tensor(b))
        word = int(philox(counter, halves)[j % 4])
        assert bool(mask[b, h, i, j]) == (word >= threshold(share))


def test_a_part_of_the_mask_is_that_part_of_the_whole() -> None:
    seed = draw_seed()
    whole = keep(seed, 0.5, (3, 4, 50, 60))
    assert torch.equal(keep(seed, 0.5, (2, 3, 17, 29)), whole[:2, :3, :17, :29])


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)], ids=str)
def test_empty_masks(shape: tuple[int, int, int, int]) -> None:
    assert keep(draw_seed(), 0.5, shape).shape == shape


def test_thresholds() -> None:
    assert [threshold(share) for share in (0.0, 0.25, 0.5)] == [0, 2**30, 2**31]
    assert threshold(1.0) == threshold(1.0 - 2**-40) == 2**32 - 1
    assert threshold(0.1) == 429496729
    assert keep(draw_seed(), 0.0, (1, 1, 9, 9)).all()


def test_seeds_come_from_the_default_generator() -> None:
    torch.manual_seed(3)
    seeds = torch.stack([draw_seed() for _ in range(200)])
    torch.manual_seed(3)
    assert torch.equal(draw_seed(), seeds[0])
    assert seeds.shape == (200, 1)
    assert seeds.dtype == torch.int64
    assert len(set(seeds.flatten().tolist())) == 200
    assert (seeds >= 0).all()
    assert (seeds > 2**32).any()


def test_every_bit_of_the_seed_counts() -> None:
    zero = keep(torch.tensor([0]), 0.5, (1, 1, 16, 16))
    for bit in range(63):
        other = keep(torch.tensor([1 << bit]), 0.5, (1, 1, 16, 16))
        assert 64 < (other != zero).sum() < 192


def weights_of(share: float, seed: int | None = None, backend: str = "reference") -> Tensor:
    """B76: the value is the identity, so the output is the weights; row 3 is closed."""
    source = torch.Generator().manual_seed(11)
    query, key = (torch.randn(1, 1, LENGTH, 8, generator=source) for _ in range(2))
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    mask[3] = False
    if seed is not None:
        torch.manual_seed(seed)
    value = torch.eye(LENGTH).view(1, 1, LENGTH, LENGTH)
    return hw.attend(query, key, value, hw.Dense(mask), dropout_p=share, backend=backend)


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_kept_weights_grow_by_what_is_dropped(share: float, backend: str) -> None:
    plain, found = weights_of(0.0, None, backend), weights_of(share, 7, backend)
    kept = found != 0
    torch.testing.assert_close(found[kept], (plain / (1 - share))[kept])
    pairs = (LENGTH - 1) * LENGTH
    spread = 3 * math.sqrt(share * (1 - share) / pairs)
    assert kept.sum().item() / pairs == pytest.approx(1 - share, abs=spread)
    assert (found[0, 0, 3] == 0).all()
    assert_same_bits(weights_of(share, 7, backend), found)
    assert not torch.equal(weights_of(share, 8, backend), found)


def test_the_mask_is_that_of_the_seed() -> None:
    found = weights_of(0.5, 7)
    torch.manual_seed(7)
    kept = keep(draw_seed(), 0.5, (1, 1, LENGTH, LENGTH))
    kept[:, :, 3] = False
    assert torch.equal(found != 0, kept)


@on_native
@pytest.mark.parametrize("q_len", [1, 16, 17, 49])
@pytest.mark.parametrize("kv_len", [1, 19, 131])
def test_the_kernels_drop_what_the_reference_drops(path: Path, q_len: int, kv_len: int) -> None:
    query, key, value = inputs(Sizes(2, 2, 2, q_len, kv_len, 8, kv_len))
    value = torch.eye(kv_len).expand_as(value)
    found = []
    for backend in ("reference", "native"):
        torch.manual_seed(7)
        with path.taken():
            found.append(hw.attend(query, key, value, dropout_p=0.4, backend=backend))
    assert torch.equal(found[0] == 0, found[1] == 0)
    torch.testing.assert_close(*found)


def test_all_dropped_is_zero() -> None:
    assert (weights_of(1.0) == 0).all()
    assert (weights_of(1.0, None, "auto") == 0).all()
    given_ = torch.randn(1, 1, 3, 4, requires_grad=True)
    for backend in ("reference", "auto"):
        output = hw.attend(given_, given_, given_, dropout_p=1.0, backend=backend)
        assert (output == 0).all()
        assert (torch.autograd.grad(output.sum(), given_)[0] == 0).all()


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize("share", [-0.5, 1.5, float("nan"), float("inf")])
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa", "native"])
def test_a_share_outside_0_to_1_is_refused(share: float, backend: str) -> None:
    given_ = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="dropout_p") as refusal:
        hw.attend(given_, given_, given_, dropout_p=share, backend=backend)
    assert str(refusal.value) == (
        f"attend: dropout_p must lie between 0 and 1, got {share}\n"
        "  hint: dropout_p is the share of weights set to zero"
    )


def test_a_dropped_weight_brings_no_gradient_and_a_kept_one_its_own() -> None:
    """In float64 against the formula with the same mask."""
    source = torch.Generator().manual_seed(5)
    query, key, value = free = [
        torch.randn(2, 2, 5, 3, generator=source, dtype=torch.float64).requires_grad_()
        for _ in range(3)
    ]
    torch.manual_seed(9)
    output = hw.attend(query, key, value, dropout_p=0.3, backend="reference")
    found = torch.autograd.grad(output.sum(), free)
    torch.manual_seed(9)
    kept = keep(draw_seed(), 0.3, (2, 2, 5, 5))
    weights = (query @ key.mT * 3**-0.5).softmax(-1) * kept / 0.7
    wanted = torch.autograd.grad((weights @ value).sum(), free)
    for mine, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, right)


def test_evaluation_leaves_the_generator_alone() -> None:
    """B74: a layer in ``eval()`` draws nothing, nor do explain, weights and calls without."""
    layer, x = hw.MultiHeadAttention(8, 2, dropout=0.5).eval(), torch.randn(2, 5, 8)
    without = hw.MultiHeadAttention(8, 2).eval()
    without.load_state_dict(layer.state_dict())
    heads = torch.randn(1, 2, 5, 4)
    before = torch.get_rng_state()
    assert_same_bits(layer(x), layer(x))
    assert_same_bits(layer(x), without(x))
    hw.explain(heads, heads, heads, dropout_p=0.5)
    hw.attention_weights(heads, heads)
    hw.attend(heads, heads, heads, dropout_p=0.0, backend="reference")
    assert torch.equal(torch.get_rng_state(), before)
    hw.attend(heads, heads, heads, dropout_p=0.5, backend="reference")
    assert not torch.equal(torch.get_rng_state(), before)


def test_a_generator_of_the_same_state_gives_the_same_training_step() -> None:
    layer, x = hw.MultiHeadAttention(8, 2, dropout=0.5), torch.randn(2, 5, 8)
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        found.append(layer(x))
    assert_same_bits(found[0], found[1])


def test_vmap_follows_its_randomness_rule() -> None:
    heads = torch.randn(3, 2, 8, 4)

    def one(x: Tensor) -> Tensor:
        return hw.attend(x, x, x, dropout_p=0.5, backend="reference")

    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(one)(heads)
    same = torch.func.vmap(one, randomness="same")(heads[:1].expand(3, -1, -1, -1))
    assert torch.equal(same[0], same[1])
    different = torch.func.vmap(one, randomness="different")(heads[:1].expand(3, -1, -1, -1))
    assert not torch.equal(different[0], different[1])

"""Positions in the layer: sizes, biases, caches, and what is refused."""

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.positions import Alibi, Learned, RelativeBias, Rotary, Sinusoidal
from tests.support.budget import assert_same_bits, largest_error
from tests.support.schemes import ORIGINAL, SCHEMES, long_factors


def test_rotary_by_hand() -> None:
    """One head of two numbers, identity projections: the score is the cosine of the distance."""
    layer = hw.MultiHeadAttention(2, 1, bias=False, positions=Rotary(2)).double()
    for linear in (layer.W_q, layer.W_k, layer.W_v, layer.W_o):
        nn.init.eye_(linear.weight)
    x = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    value = torch.eye(3, 2, dtype=torch.float64)[None]
    weights = torch.softmax(torch.cos(torch.tensor([2.0, 1.0, 0.0]).double()) / 2**0.5, -1)
    found = layer(x, x, value)[0, 2]
    assert largest_error(found, weights[:2]) < 1e-8


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_state_dict_holds_what_is_learned(scheme: str) -> None:
    layer = hw.MultiHeadAttention(24, 4, head_dim=8, positions=SCHEMES[scheme](24, 4, 8))
    usual = {f"W_{name}.{kind}" for name in "qkvo" for kind in ("weight", "bias")}
    learned = {"positions.weight"} if scheme.startswith(("relative", "learned")) else set()
    assert set(layer.state_dict()) == usual | learned


@pytest.mark.parametrize(
    ("positions", "kind", "text"),
    [
        (Rotary(6), hw.ShapeError, r"head_dim, got Rotary of 6 and 8\n  hint: .*Rotary\(8"),
        (Alibi(2), hw.ShapeError, "num_heads, got Alibi of 2 and 4"),
        (RelativeBias(8), hw.ShapeError, "num_heads, got RelativeBias of 8 and 4"),
        (
            Sinusoidal(16),
            hw.ShapeError,
            r"d_model, got Sinusoidal of 16 and 32\n  hint: .*Sinusoidal\(32, …\)$",
        ),
        (
            Learned(9, 16),
            hw.ShapeError,
            r"d_model, got Learned of 16 and 32\n  hint: .*Learned\(9, 32, …\)$",
        ),
        (
            "rotary",
            TypeError,
            r"object of headwise\.positions, got 'rotary'\n  hint: .*Rotary\(8\)",
        ),
        (nn.Embedding(9, 32), TypeError, r"got Embedding\(9, 32\)"),
        (Rotary, TypeError, r"object of headwise\.positions, got <class"),
    ],
)
def test_positions_that_do_not_fit(positions: object, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        hw.MultiHeadAttention(32, 4, positions=positions)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", [Learned(9, 32), Learned(9, 24), Sinusoidal(32)])
def test_added_positions_want_one_width(scheme: Learned | Sinusoidal) -> None:
    with pytest.raises(hw.ShapeError) as refused:
        hw.MultiHeadAttention(32, 4, kv_dim=24, positions=scheme)
    kind = type(scheme).__name__
    assert str(refused.value) == (
        f"MultiHeadAttention: {kind} positions are added to inputs of one width, got d_model=32 "
        f"and kv_dim=24\n  hint: make the layer without positions, and add to each input a {kind} "
        "of its width before the call"
    )


def test_a_second_bias_is_refused() -> None:
    layer = hw.MultiHeadAttention(32, 4, positions=Alibi(4))
    with pytest.raises(ValueError, match="the layer's positions are a bias already: Alibi"):
        layer(torch.randn(1, 3, 32), bias=torch.zeros(3, 3))


@pytest.mark.parametrize(
    "positions", [Rotary(8, scaling=long_factors(8)), SCHEMES["dynamic"](0, 4, 8)]
)
def test_keys_of_other_frequencies_are_refused(positions: Rotary) -> None:
    layer = hw.MultiHeadAttention(32, 4, positions=positions, pattern=hw.Causal()).eval()
    x, cache = torch.randn(1, ORIGINAL + 2, 32), hw.KVCache()
    layer(x[:, : ORIGINAL - 1], cache=cache)
    layer(x[:, ORIGINAL - 1 : ORIGINAL], cache=cache)
    kept = cache.stored().key.clone()
    with pytest.raises(
        hw.CacheError, match=rf"the {ORIGINAL} keys .* than {ORIGINAL + 1}\n.*at_length"
    ):
        layer(x[:, ORIGINAL : ORIGINAL + 1], cache=cache)
    assert_same_bits(cache.stored().key, kept)
    settled = hw.MultiHeadAttention(
        32, 4, positions=positions.at_length(ORIGINAL + 2), pattern=hw.Causal()
    ).eval()
    settled.load_state_dict(layer.state_dict())
    cache = hw.KVCache()
    with torch.no_grad():
        steps = [settled(x[:, n : n + 1], cache=cache) for n in range(ORIGINAL + 2)]
        torch.testing.assert_close(torch.cat(steps, 1), settled(x))
        torch.testing.assert_close(settled(x), layer(x))


def test_padding_is_not_counted_where_frequencies_change() -> None:
    layer = hw.MultiHeadAttention(
        32, 4, positions=Rotary(8, scaling=long_factors(8)), pattern=hw.Causal()
    ).eval()
    x, cache = torch.randn(2, ORIGINAL + 2, 32), hw.KVCache()
    real = torch.arange(ORIGINAL + 2).expand(2, -1) >= 2
    with torch.no_grad():
        steps = [
            layer(x[:, n : n + 1], kv_mask=real[:, : n + 1], cache=cache)
            for n in range(ORIGINAL + 2)
        ]
        wanted = layer(x[:, 2:])
    torch.testing.assert_close(torch.cat(steps, 1)[:, 2:], wanted)


def test_absolute_positions_of_each_sample_can_be_given() -> None:
    layer = hw.MultiHeadAttention(32, 4, positions=Learned(20, 32)).double().eval()
    x, starts = torch.randn(3, 4, 32, dtype=torch.float64), [0, 7, 16]
    with torch.no_grad():
        together = layer(x, q_offset=torch.tensor(starts))
        for n, start in enumerate(starts):
            alone = layer(x[n : n + 1], q_offset=start)
            assert largest_error(together[n : n + 1], alone) < 1e-14
    with pytest.raises(hw.ShapeError, match="Learned"):
        layer(x, q_offset=17)


def test_patterns_move_with_given_positions() -> None:
    layer = hw.MultiHeadAttention(32, 4, pattern=hw.Prefix(2) | hw.Window(0, 0)).double()
    x = torch.randn(1, 5, 32, dtype=torch.float64)
    here, behind = layer(x), layer(x, q_offset=2)
    assert largest_error(behind, layer(x, pattern=hw.Window(0, 0))) < 1e-14
    assert largest_error(layer(x, q_offset=torch.tensor([0])), here) < 1e-14


def test_in_cross_attention_the_last_query_stands_beside_the_last_key() -> None:
    layer = hw.MultiHeadAttention(32, 4, positions=Rotary(8)).double().eval()
    memory = torch.randn(2, 7, 32, dtype=torch.float64)
    with torch.no_grad():
        whole = layer(memory)
        assert largest_error(layer(memory[:, 4:], memory), whole[:, 4:]) < 1e-13
        assert largest_error(layer(memory[:, 2:4], memory, q_offset=2), whole[:, 2:4]) < 1e-13
        left = torch.cat([torch.randn(2, 3, 32, dtype=torch.float64), memory], 1)
        real = torch.arange(10).expand(2, 10) >= 3
        assert largest_error(layer(memory[:, 4:], left, kv_mask=real), whole[:, 4:]) < 1e-13


def test_one_sample_without_a_batch() -> None:
    x = torch.randn(5, 24)
    for scheme in SCHEMES.values():
        layer = hw.MultiHeadAttention(24, 4, head_dim=8, positions=scheme(24, 4, 8)).eval()
        for real in (None, torch.tensor([False, True, True, True, False])):
            with torch.no_grad():
                wanted = layer(x[None], kv_mask=None if real is None else real[None])[0]
                torch.testing.assert_close(layer(x, kv_mask=real), wanted)


def test_empty_calls() -> None:
    for scheme in SCHEMES.values():
        layer = hw.MultiHeadAttention(24, 4, head_dim=8, positions=scheme(24, 4, 8))
        for shape in ((0, 5), (2, 0), (0, 0)):
            x = torch.randn(*shape, 24, requires_grad=True)
            out: Tensor = layer(x, kv_mask=torch.ones(shape, dtype=torch.bool))
            assert out.shape == x.shape
            torch.autograd.backward(out.sum())
            assert x.grad is not None


def test_in_cross_attention_added_positions_count_from_the_first_query() -> None:
    """Queries before the first key all took the position 0."""
    layer = hw.MultiHeadAttention(32, 4, positions=Learned(20, 32)).double().eval()
    x, memory = torch.randn(2, 6, 32).double(), torch.randn(2, 3, 32).double()
    with torch.no_grad():
        found = layer(x, memory)
        assert largest_error(layer(x, memory, q_offset=0), found) < 1e-14
        one_by_one = [layer(x[:, n : n + 1], memory, q_offset=n) for n in range(6)]
        assert largest_error(torch.cat(one_by_one, 1), found) < 1e-13


def test_given_positions_leave_the_length_alone() -> None:
    """Padding behind a sample was counted where q_offset was given."""
    layer = hw.MultiHeadAttention(32, 4, positions=SCHEMES["dynamic"](0, 4, 8)).eval()
    x = torch.randn(1, 2 * ORIGINAL, 32)
    real = torch.arange(2 * ORIGINAL)[None] < ORIGINAL - 1
    with torch.no_grad():
        counted = layer(x, kv_mask=real)
        torch.testing.assert_close(layer(x, kv_mask=real, q_offset=0), counted)


@pytest.mark.parametrize("scheme", ["none", "learned", "dynamic"])
def test_masks_and_offsets_that_do_not_fit(scheme: str) -> None:
    layer = hw.MultiHeadAttention(24, 4, head_dim=8, positions=SCHEMES[scheme](24, 4, 8))
    x = torch.randn(2, 5, 24)
    for mask in (torch.ones(2, 1, 1, 5), torch.ones(2, 4), torch.ones(3, 5)):
        with pytest.raises((hw.PatternError, hw.ShapeError), match=r"mask|KeyMask"):
            layer(x, kv_mask=mask.bool())
    with pytest.raises(TypeError, match="q_offset must be an int, or a tensor"):
        layer(x, q_offset=1.5)
    with pytest.raises(TypeError, match=r"q_offset must be .* got \[1, 2\]"):
        layer(x, q_offset=[1, 2])
    with pytest.raises(hw.PatternError, match=r"kv_mask|KeyMask"):
        layer(x, kv_mask=2 * torch.ones(2, 5))
    rows = [[True] * 5, [True] * 3 + [False] * 2]
    torch.testing.assert_close(
        layer(x, kv_mask=rows),
        layer(x, kv_mask=torch.tensor(rows)),
    )


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "longrope"])
def test_rows_of_other_lengths_count_from_their_own_tokens(scheme: str) -> None:
    layer = hw.MultiHeadAttention(
        24, 4, head_dim=8, pattern=hw.Causal(), positions=SCHEMES[scheme](24, 4, 8)
    ).double()
    x, lengths = torch.randn(3, 4, 24, dtype=torch.float64), [2, 4, 3]
    more = torch.randn(3, 2, 24, dtype=torch.float64)
    cache = hw.KVCache()
    with torch.no_grad():
        prompt = layer(x, cache=cache, q_lengths=lengths)
        steps = [layer(more[:, n : n + 1], cache=cache) for n in range(2)]
        for row, length in enumerate(lengths):
            tokens = torch.cat([x[row, :length], more[row]])[None]
            if scheme == "dynamic" and tokens.shape[1] > ORIGINAL:
                continue
            wanted = layer(tokens)[0]
            found = torch.cat([prompt[row, :length], *(step[row] for step in steps)])
            assert largest_error(found, wanted) < 1e-12

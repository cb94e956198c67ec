"""What follows --attention: patterns and kinds of attention in words."""

from typing import Any

import pytest
import torch

import headwise as hw
from headwise.cli.attention_words import KNOWN, Place, read_attention
from headwise.cli.failures import WrongInput
from headwise.patterns import Causal, GlobalTokens, Pattern, Strided, Window

ENCODER, DECODER = Place(causal=False, tokens=37), Place(causal=True, tokens=37, layer=5)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("window 8", Window(4, 4)),
        ("Window 9", Window(4, 4)),
        (" window  8 ", Window(4, 4)),
        ("window(3, 0)", Window(3, 0)),
        ("window 3 0", None),
        ("longformer 8", hw.patterns.longformer(8, [0])),
        ("longformer(8, [0, 3])", hw.patterns.longformer(8, [0, 3])),
        ("bigbird", hw.patterns.bigbird(64)),
        ("bigbird 16", hw.patterns.bigbird(16)),
        ("strided 4", Strided(4)),
        ("sliding_causal 4", hw.patterns.sliding_causal(4)),
        ("causal", Causal()),
        ("window(1, 1) | global(0)", Window(1, 1) | GlobalTokens((0,))),
    ],
)
def test_patterns(text: str, pattern: Pattern | None) -> None:
    if pattern is None:
        with pytest.raises(WrongInput, match="window takes TOKENS, a whole number"):
            read_attention(text)
    else:
        assert read_attention(text).build(ENCODER) == pattern


def test_a_window_of_a_decoder_counts_back() -> None:
    dense = read_attention("window 3").build(DECODER).dense(5, 5)
    assert dense.sum(-1).tolist() == [1, 2, 3, 3, 3]
    assert torch.equal(dense, dense.tril())


@pytest.mark.parametrize("feature_map", ["elu", "relu", "squared_relu", "softmax"])
def test_linear_attention(feature_map: str) -> None:
    built: Any = read_attention(f"linear {feature_map}").build(DECODER)
    assert isinstance(built, hw.nn.LinearAttention)
    assert built.feature_map == feature_map


@pytest.mark.parametrize("name", ["random-features", "random_features", "Performer"])
def test_random_features_differ_from_layer_to_layer(name: str) -> None:
    read = read_attention(f"{name} 16")
    first, other = read.build(ENCODER), read.build(DECODER)
    assert isinstance(first, hw.nn.RandomFeatures)
    assert (first.count, int(first.seed), int(other.seed)) == (16, 0, 5)


@pytest.mark.parametrize("name", ["low-rank", "linformer"])
def test_low_rank_is_the_same_in_every_run(name: str) -> None:
    state = torch.get_rng_state()
    read = read_attention(f"{name} 5")
    first, again = (read.build(ENCODER).state_dict() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert first.keys() == again.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert read.build(ENCODER).max_length == 37
    assert read.note == "its projections are random numbers: they have to be trained"


def test_means_of_windows() -> None:
    built = read_attention("mean-pool 5").build(ENCODER)
    assert (built.rank, built.max_length, built.projection) == (5, 40, "mean")
    assert read_attention("mean-pool 64").build(ENCODER).max_length == 64


@pytest.mark.parametrize("text", ["nonsense", "", "  ", "performers 3", "wind 3", "linear_elu"])
def test_unknown_words_list_what_is_known(text: str) -> None:
    with pytest.raises(WrongInput) as refusal:
        read_attention(text)
    assert str(refusal.value) == f"--attention takes {KNOWN}; got {text!r}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("linear", "--attention linear takes one feature map, elu, relu, squared_relu, softmax"),
        ("linear favor", "got 'linear favor'; as in --attention 'linear elu'"),
        ("random-features", "random-features takes COUNT, a whole number of at least 1"),
        ("performer 100000000", "a whole number of at least 1 and at most 8192, got 'performer"),
        ("window " + "9" * 5000, "window takes TOKENS, a whole number of at least 1, got"),
        ("low-rank 0", "got 'low-rank 0'; as in --attention 'low-rank 128'"),
        ("bigbird -3", "as in --attention 'bigbird 64'"),
        ("window(1", "--attention: "),
        ("window(1, 1) & nonsense", "'nonsense' is no pattern"),
        ("window(1, 1) & nonsense", "or name a kind: window TOKENS, longformer TOKENS"),
        ("window \udce9", "is not valid UTF-8"),
    ],
)
def test_wrong_words(text: str, says: str) -> None:
    with pytest.raises(WrongInput) as refusal:
        read_attention(text)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)

"""What layers refuse in words of their own: sizes, flags, numbers, names of other libraries."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.nn.other_names import OF_ATTENTION, OF_BLOCK

pytestmark = pytest.mark.usefixtures("plain_calls")

Make = Callable[..., nn.Module]
ATTENTION = partial(hw.MultiHeadAttention, 12, 3)
X = torch.zeros(2, 5, 12)


def refusal(kind: type[Exception], make: Callable[..., object], **settings: Any) -> str:
    with pytest.raises(kind) as refused:
        make(**settings)
    return str(refused.value)


BOTH = partial(hw.nn.LongformerAttention, window=2)
SIZES: list[tuple[Make, dict[str, Any], str]] = [
    (hw.MultiHeadAttention, {"d_model": 12.0, "num_heads": 3}, "d_model=12.0"),
    (hw.MultiHeadAttention, {"d_model": 12, "num_heads": True}, "num_heads=True"),
    (hw.MultiHeadAttention, {"d_model": 0, "num_heads": -1}, "d_model=0, num_heads=-1"),
    (ATTENTION, {"num_kv_heads": 1.0}, "num_kv_heads=1.0"),
    (ATTENTION, {"head_dim": 4.5}, "head_dim=4.5"),
    (ATTENTION, {"value_dim": "4"}, "value_dim='4'"),
    (ATTENTION, {"kv_dim": 12.0}, "kv_dim=12.0"),
    (hw.nn.FeedForward, {"d_model": 32, "hidden_dim": 85.3}, "hidden_dim=85.3"),
    (hw.nn.FeedForward, {"d_model": True}, "d_model=True"),
    (BOTH, {"d_model": 12, "num_heads": 3.0}, "num_heads=3.0"),
    (BOTH, {"d_model": 0, "num_heads": 3}, "d_model=0"),
]


@pytest.mark.parametrize(("make", "wrong", "shown"), SIZES, ids=[one[2] for one in SIZES])
def test_sizes_that_are_no_counts(make: Make, wrong: dict[str, Any], shown: str) -> None:
    caller = getattr(make, "func", make).__name__
    assert refusal(hw.ShapeError, make, **wrong) == (
        f"{caller}: sizes must be ints of at least 1, got {shown}\n"
        "  hint: sizes count columns or heads; convert a computed one with int(…)"
    )


@pytest.mark.parametrize("softcap", [0, -1, float("nan"), float("inf"), "x", True], ids=str)
def test_a_softcap_is_refused_as_attend_words_it(softcap: Any) -> None:
    said = refusal(ValueError, ATTENTION, softcap=softcap)
    assert said == (
        f"MultiHeadAttention: softcap must be above 0 and finite, got {softcap!r}\n"
        "  hint: leave softcap out for scores without a cap"
    )
    if not isinstance(softcap, str | bool):
        q = torch.zeros(1, 1, 2, 4)
        called = refusal(ValueError, partial(hw.attend, q, q, q), softcap=softcap)
        assert said == called.replace("attend", "MultiHeadAttention")


def test_numbers_in_tensors_are_not_shown() -> None:
    said = refusal(ValueError, ATTENTION, softcap=nn.Parameter(torch.ones(())))
    assert "got a tensor\n" in said


@pytest.mark.parametrize("dropout", [-0.5, 1.5, float("nan"), "x", True, None], ids=str)
@pytest.mark.parametrize(
    ("make", "caller"),
    [
        (ATTENTION, "MultiHeadAttention"),
        (partial(hw.nn.FeedForward, 8), "FeedForward"),
        (partial(hw.nn.LongformerAttention, 12, 3, 2), "LongformerAttention"),
        (
            partial(hw.nn.TransformerBlock, ATTENTION(), hw.nn.FeedForward(12)),
            "TransformerBlock",
        ),
    ],
    ids=["attention", "feed-forward", "longformer", "block"],
)
def test_a_dropout_that_is_no_share(make: Make, caller: str, dropout: Any) -> None:
    assert refusal(ValueError, make, dropout=dropout) == (
        f"{caller}: dropout must lie between 0 and 1, got {dropout!r}\n"
        "  hint: dropout is the share of numbers set to zero in training"
    )


@pytest.mark.parametrize(
    ("make", "flag", "given", "hint"),
    [
        (ATTENTION, "sinks", 4, "headwise.attend takes given ones"),
        (ATTENTION, "qk_norm", "l2", "True is RMSNorm per head"),
        (ATTENTION, "bias", torch.zeros(3, 5, 5), "numbers added to the scores go into a call"),
        (partial(hw.nn.FeedForward, 8), "gated", "silu", "is activation="),
        (partial(hw.nn.FeedForward, 8), "bias", None, "whether linear maps have a bias"),
        (partial(hw.nn.LongformerAttention, 12, 3, 2), "causal", 1, "hides what comes after"),
        (
            partial(hw.nn.TransformerBlock, ATTENTION(), hw.nn.FeedForward(12)),
            "norm_first",
            "pre",
            "False behind the sums",
        ),
    ],
    ids=["sinks", "qk_norm", "bias", "gated", "no bias", "causal", "norm_first"],
)
def test_flags_are_true_or_false(make: Make, flag: str, given: Any, hint: str) -> None:
    said = refusal(TypeError, make, **{flag: given})
    shown = "a tensor" if isinstance(given, Tensor) else repr(given)
    assert f": {flag} must be True or False, got {shown}\n  hint: " in said
    assert hint in said


@pytest.mark.parametrize(
    ("part", "wrong", "shown"),
    [
        ("attention", 512, "512"),
        ("attention", hw.nn.FeedForward(12), "FeedForward"),
        ("attention", hw.nn.LongformerAttention(12, 3, 2), "LongformerAttention"),
        ("attention", nn.MultiheadAttention(12, 3), "MultiheadAttention"),
        ("attention", hw.MultiHeadAttention, "<class 'headwise.nn.attention.MultiHeadAttention'>"),
        ("feed_forward", 8, "8"),
        ("feed_forward", nn.Sequential(nn.Linear(12, 12)), "Sequential"),
        ("feed_forward", ATTENTION(), "MultiHeadAttention"),
        ("cross_attention", hw.nn.FeedForward(12), "FeedForward"),
    ],
)
def test_parts_that_are_none(part: str, wrong: Any, shown: str) -> None:
    right = {"attention": ATTENTION(), "feed_forward": hw.nn.FeedForward(12)}
    said = refusal(TypeError, hw.nn.TransformerBlock, **{**right, part: wrong})
    wanted = "a MultiHeadAttention"
    if part == "feed_forward":
        wanted = "a FeedForward, or a module of yours with its width as d_model"
    assert said == (
        f"TransformerBlock: {part} must be {wanted}, got {shown}\n"
        "  hint: make the parts before: TransformerBlock(MultiHeadAttention(512, 8), "
        "FeedForward(512)); cross attention is the third"
    )


def test_parts_of_ones_own_and_wrapped_ones_are_taken() -> None:
    class Doubled(nn.Module):
        d_model = 12

        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    wrapped: Any = torch.compile(ATTENTION(), backend="eager")
    doubled: Any = Doubled()
    block = hw.nn.TransformerBlock(wrapped, doubled)
    with torch.no_grad():
        assert block(X).shape == X.shape


@pytest.mark.parametrize("eps", ["x", -1e-5, float("nan"), None], ids=str)
def test_an_eps_that_is_none(eps: Any) -> None:
    make = partial(hw.nn.TransformerBlock, ATTENTION(), hw.nn.FeedForward(12))
    assert refusal(ValueError, make, eps=eps) == (
        f"TransformerBlock: eps must be a finite number of at least 0, got {eps!r}\n"
        "  hint: 1e-5 is usual with nn.LayerNorm, 1e-6 with nn.RMSNorm"
    )


LAYERS: dict[str, tuple[nn.Module, str, dict[str, str]]] = {
    "MultiHeadAttention": (ATTENTION(), "query", OF_ATTENTION),
    "TransformerBlock": (
        hw.nn.TransformerBlock(ATTENTION(), hw.nn.FeedForward(12)),
        "x",
        OF_BLOCK,
    ),
}
NAMES = [(layer, name) for layer, (_, _, names) in LAYERS.items() for name in names]


@pytest.mark.parametrize(("layer", "name"), NAMES)
def test_names_of_other_libraries_are_told_apart(layer: str, name: str) -> None:
    called, first, names = LAYERS[layer]
    said = refusal(TypeError, partial(called, **{first: X}), **{name: X})
    assert said == (
        f"{layer}.forward: there is no argument {name}\n  hint: instead of {name} use {names[name]}"
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_hints_name_what_there_is(layer: str) -> None:
    """A hint begins with an argument of the call, or with a public name of headwise."""
    called, _, names = LAYERS[layer]
    there = set(called.forward.__annotations__) - {"return", "renamed"}
    assert not there & set(names)
    made = {"positions", "dropout"}
    for name, hint in names.items():
        word, assigned, _ = hint.partition("=")
        public = hint.startswith(("headwise.attention_weights,", "the columns of W_o.weight"))
        assert public or (assigned and word in there | made), (name, hint)


REPLACED: list[tuple[str, dict[str, Any]]] = [
    ("position_ids", {"q_offset": 3}),
    ("position_ids", {"q_offset": torch.tensor([3, 7])}),
    ("attention_mask", {"kv_mask": torch.tensor([[1] * 5, [1] * 4 + [0]])}),
    ("alibi_slopes", {"bias": hw.positions.Alibi(3, [0.5, 0.25, 0.1])}),
    ("window_size", {"pattern": hw.Window(None, 0)}),
    ("past_key_values", {"cache": hw.KVCache()}),
]


@pytest.mark.parametrize(("name", "instead"), REPLACED)
def test_replacements_are_taken(name: str, instead: dict[str, Any]) -> None:
    assert name in OF_ATTENTION
    for called, *_ in LAYERS.values():
        assert called(X, **instead).shape == X.shape


@pytest.mark.parametrize("layer", LAYERS)
def test_names_of_nobody_and_a_missing_input(layer: str) -> None:
    called, first, _ = LAYERS[layer]
    assert refusal(TypeError, partial(called, X), nonsense=1) == (
        f"{layer}.forward: there is no argument nonsense\n"
        f"  hint: help(headwise.nn.{layer}.forward) lists those there are"
    )
    assert refusal(TypeError, called) == (
        f"{layer}.forward: {first} is missing\n  hint: pass the tokens as {first}"
    )
    both = refusal(TypeError, called, hidden_states=X, nonsense=1)
    assert both == (
        f"{layer}.forward: there is no argument hidden_states, nonsense\n"
        f"  hint: instead of hidden_states use {first}="
    )

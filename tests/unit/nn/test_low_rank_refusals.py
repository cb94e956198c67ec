"""What LowRank refuses, word for word."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.nn import LowRank

pytestmark = pytest.mark.usefixtures("plain_calls")

X = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(1))


def layer(**settings: Any) -> hw.MultiHeadAttention:
    return hw.MultiHeadAttention(16, 4, mechanism=LowRank(3, 9), **settings)


CAUSAL = (
    "\n  hint: padding is kv_mask=; for causal attention use "
    "mechanism=headwise.nn.LinearAttention(…), or no mechanism and "
    "pattern=headwise.Causal() & headwise.Window(…, 0)"
)
PAIRS = (
    "LowRank: projected tokens hold something of all tokens, so none can be hidden from some "
    "queries, got "
)
BIAS = (
    "LowRank: there are no scores of pairs of tokens, so bias cannot be added, and the layer asks "
    "for it\n  hint: leave the bias out; positions.Rotary, Sinusoidal and Learned need none; "
    "softmax attention, mechanism=None, has it"
)

CALLS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "causal layer": (
        lambda: layer(pattern=hw.Causal()),
        hw.PatternError,
        f"{PAIRS}Causal(){CAUSAL}",
    ),
    "window of a call": (
        lambda: layer()(X, pattern=hw.Window(1, 1)),
        hw.PatternError,
        f"{PAIRS}Window(left=1, right=1, dilation=1){CAUSAL}",
    ),
    "bias": (lambda: layer()(X, bias=torch.zeros(7, 7)), NotImplementedError, BIAS),
    "bias by distance": (
        lambda: layer(positions=hw.positions.Alibi(4)),
        NotImplementedError,
        BIAS,
    ),
    "too long": (
        lambda: layer()(torch.randn(1, 10, 16)),
        hw.ShapeError,
        "LowRank: a call may bring max_length=9 tokens, got 10\n"
        "  hint: cut the input, or make the mechanism with a larger max_length",
    ),
    "too long for windows": (
        lambda: hw.MultiHeadAttention(16, 4, mechanism=LowRank(3, 9, projection="mean"))(
            torch.randn(1, 10, 16)
        ),
        hw.ShapeError,
        "LowRank: a call may bring max_length=9 tokens, got 10\n"
        "  hint: cut the input, or make the mechanism with a larger max_length",
    ),
    "kv_mask": (
        lambda: layer()(X, kv_mask=torch.ones(2, 6, dtype=torch.bool)),
        hw.PatternError,
        "LowRank: kv_mask must be (batch, kv_len), (2, 7) here, got (2, 6)\n"
        "  hint: True = real token; kv_mask.expand(batch, -1) repeats one row; a mask over queries "
        "and keys is for headwise.attend, as Dense(mask)",
    ),
    "heads of another layer": (
        lambda: LowRank(3, 9, num_kv_heads=4).fit(kv_heads=2),
        hw.ShapeError,
        "LowRank: num_kv_heads must be that of the layer, got 4 and 2\n"
        '  hint: leave num_kv_heads out; layers that differ in it can share share="heads"',
    ),
    "heads of another call": (
        lambda: LowRank(3, 9, num_kv_heads=2)(hw.nn.AttentionCall(*layer().project(X))),
        hw.ShapeError,
        "LowRank: each key/value head has its own projection, got num_kv_heads=2 and 4 heads\n"
        '  hint: make it with num_kv_heads=4, or with share="heads"',
    ),
    "dtype": (
        lambda: hw.MultiHeadAttention(16, 4, mechanism=LowRank(3, 9, "all"), dtype=torch.bfloat16)(
            X.bfloat16()
        ),
        hw.DtypeError,
        "LowRank: its projections must have the dtype and device of keys and values\n"
        "  projection  (3, 9) torch.float32 cpu\n"
        "  tokens      (2, 4, 7, 4) torch.bfloat16 cpu\n"
        "  hint: make it with dtype= and device=, or move the layer that it is in, layer.to(…)",
    ),
    "sizes": (
        lambda: LowRank(0, 9),
        hw.ShapeError,
        "LowRank: sizes must be ints of at least 1, got rank=0\n"
        "  hint: sizes count columns or heads; convert a computed one with int(…)",
    ),
    "share": (
        lambda: LowRank(3, 9, "layers"),
        ValueError,
        "LowRank: share must be one of none, kv, heads, all, got 'layers'\n"
        "  hint: layers share projections by having one LowRank object as mechanism",
    ),
    "projection": (
        lambda: LowRank(3, 9, projection="max"),
        ValueError,
        "LowRank: projection must be one of linear, conv, mean, got 'max'\n"
        "  hint: linear learns a number for each place, conv one kernel for all windows, mean "
        "nothing",
    ),
    "nothing to share": (
        lambda: LowRank(3, 9, "kv", projection="mean"),
        ValueError,
        "LowRank: projection=\"mean\" learns nothing that could be shared, got share='kv'\n"
        "  hint: leave share out",
    ),
    "windows": (
        lambda: LowRank(3, 10, projection="conv"),
        hw.ShapeError,
        "LowRank: rank must divide max_length for projection='conv', got 3 and 10\n"
        "  hint: round max_length up; windows that no token reaches cost nothing",
    ),
}


@pytest.mark.parametrize(("call", "kind", "text"), CALLS.values(), ids=CALLS)
def test_refusals(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text


def test_a_cache_is_refused_and_stays_as_it_was() -> None:
    cache = hw.KVCache()
    with pytest.raises(hw.CacheError) as caught:
        layer()(X, cache=cache)
    assert str(caught.value) == (
        "LowRank: projected tokens hold something of all tokens, so what a step of decoding finds "
        "in a cache is not what it was trained on\n"
        "  hint: leave cache= out; for decoding use mechanism=headwise.nn.LinearAttention(…), or "
        "no mechanism and pattern=headwise.Causal() & headwise.Window(…, 0)"
    )
    assert cache.length() == 0


def test_patterns_that_hide_nothing_are_taken() -> None:
    one = layer()
    torch.testing.assert_close(one(X, pattern=hw.Full() & hw.Full()), one(X))

"""TorchMultiheadAttention: what it refuses, and in which words."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import headwise as hw
from headwise.nn.torch_attention import TorchMultiheadAttention as Ours

pytestmark = pytest.mark.usefixtures("plain_calls")

X = torch.zeros(2, 5, 8)
MASK = torch.zeros(5, 5, dtype=torch.bool)
Wrong = Callable[[Ours], Any]


class Strange(nn.MultiheadAttention):
    def forward(self, *_: Any, **__: Any) -> Any:
        return None


def _weighted() -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(8, 2)
    parametrizations.weight_norm(theirs, "in_proj_weight")
    return theirs


def _patched() -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(8, 2)
    theirs.forward = lambda *_: None  # type: ignore[assignment, method-assign]
    return theirs


REFUSED: dict[str, tuple[Wrong, type[Exception], str]] = {
    "hint alone": (lambda m: m(X, X, X, is_causal=True), RuntimeError, "attn_mask is missing"),
    "hint, no weights": (
        lambda m: m(X, X, X, is_causal=True, need_weights=False),
        RuntimeError,
        "pass the causal mask too",
    ),
    "width": (lambda m: m(X[..., :7], X, X), hw.ShapeError, "with widths (8, 8, 8)"),
    "batches": (lambda m: m(X, X[:1], X[:1]), hw.ShapeError, "(batch, length, width)"),
    "lengths": (lambda m: m(X, X, X[:, :4]), hw.ShapeError, "key and value one length"),
    "dimensions": (lambda m: m(X, X[0], X[0]), hw.ShapeError, "batch_first=True says"),
    "four": (lambda m: m(X[None], X[None], X[None]), hw.ShapeError, "or (length, width)"),
    "dtype": (
        lambda m: m(X.double(), X.double(), X.double()),
        hw.DtypeError,
        "have the dtype of the parameters, torch.float32",
    ),
    "device": (
        lambda m: m(X.to("meta"), X.to("meta"), X.to("meta")),
        hw.DtypeError,
        "on the device of the parameters, cpu",
    ),
    "list": (lambda m: m(X, X, X, [[False] * 5]), hw.DtypeError, "must be a tensor, got list"),
    "integers": (
        lambda m: m(X, X, X, attn_mask=MASK.int()),
        hw.DtypeError,
        "attn_mask must be bool, True = ignore",
    ),
    "mask sizes": (
        lambda m: m(X, X, X, attn_mask=MASK[:4]),
        hw.PatternError,
        "attn_mask must be (5, 5) or (4, 5, 5), got (4, 5)",
    ),
    "padding sizes": (
        lambda m: m(X, X, X, MASK[:3]),
        hw.PatternError,
        "key_padding_mask must be (2, 5), got (3, 5)",
    ),
    "padding of one": (
        lambda m: m(X[0], X[0], X[0], MASK[:1]),
        hw.PatternError,
        "key_padding_mask must be (5,), got (1, 5)",
    ),
    "no layer": (lambda _: Ours.from_torch(nn.Linear(2, 2)), TypeError, "got Linear"),  # type: ignore[arg-type]
    "subclass": (lambda _: Ours.from_torch(Strange(8, 2)), TypeError, "Strange has a forward"),
    "patched": (lambda _: Ours.from_torch(_patched()), TypeError, "which would be lost"),
    "parametrised": (
        lambda _: Ours.from_torch(_weighted()),
        TypeError,
        "have parametrisations",
    ),
}


@pytest.mark.parametrize(("wrong", "kind", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(wrong: Wrong, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        wrong(Ours(8, 2, batch_first=True))
    assert text in str(caught.value)


def test_the_whole_message_of_a_missing_mask() -> None:
    with pytest.raises(RuntimeError) as caught:
        Ours(8, 2)(X, X, X, is_causal=True)
    assert str(caught.value) == (
        "TorchMultiheadAttention: is_causal is a hint about attn_mask, and attn_mask is missing\n"
        "  hint: pass the causal mask too, as from "
        "nn.Transformer.generate_square_subsequent_mask; headwise.MultiHeadAttention needs none, "
        "with pattern=headwise.Causal()"
    )

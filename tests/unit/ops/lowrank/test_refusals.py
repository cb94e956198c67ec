"""What low-rank attention refuses, word for word."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw

pytestmark = pytest.mark.usefixtures("plain_calls")

Q, K, V = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 5, 8), torch.zeros(2, 2, 5, 6)
P = torch.zeros(2, 7, 5)

CALLS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "more keys than columns": (
        lambda: hw.lowrank_attend(Q, K, V, P[..., :4], P),
        hw.ShapeError,
        "lowrank_attend: key_projection must have a column for each key, got 4 columns for "
        "5 keys\n"
        "  hint: cut the input, or learn more columns, one for each place; shorter inputs use the "
        "first ones",
    ),
    "ranks": (
        lambda: hw.lowrank_attend(Q, K, V, P, P[:, :6]),
        hw.ShapeError,
        "lowrank_attend: both projections must have the same rank\n"
        "  key_projection    (2, 7, 5) torch.float32 cpu\n"
        "  value_projection  (2, 6, 5) torch.float32 cpu\n"
        "  hint: every projected key has one projected value; (rank, length) or "
        "(kv_heads, rank, length)",
    ),
    "heads of a projection": (
        lambda: hw.lowrank_attend(Q, K, V, P, torch.zeros(4, 7, 5)),
        hw.ShapeError,
        "lowrank_attend: value_projection must be (rank, length), or (kv_heads, rank, length) with "
        "2 heads\n"
        "  value             (2, 2, 5, 6) torch.float32 cpu\n"
        "  value_projection  (4, 7, 5) torch.float32 cpu\n"
        "  hint: all samples share it; one for all heads has two dimensions",
    ),
    "samples of a projection": (
        lambda: hw.lowrank_attend(Q, K, V, P[None], P),
        hw.ShapeError,
        "lowrank_attend: key_projection must be (rank, length), or (kv_heads, rank, length) with "
        "2 heads\n"
        "  key             (2, 2, 5, 8) torch.float32 cpu\n"
        "  key_projection  (1, 2, 7, 5) torch.float32 cpu\n"
        "  hint: all samples share it; one for all heads has two dimensions",
    ),
    "dtype of a projection": (
        lambda: hw.lowrank_attend(Q, K, V, P.double(), P),
        hw.DtypeError,
        "lowrank_attend: key_projection must have the dtype and device of key and value\n"
        "  key             (2, 2, 5, 8) torch.float32 cpu\n"
        "  key_projection  (2, 7, 5) torch.float64 cpu\n"
        "  hint: convert it with .to(key)",
    ),
    "no tensor": (
        lambda: hw.lowrank_attend(Q, K, V, P, 7),  # type: ignore[arg-type]
        hw.DtypeError,
        "lowrank_attend: query, key, value and both projections must be tensors, got "
        "Tensor, Tensor, Tensor, Tensor, int\n"
        "  hint: a projection is (rank, length) or (kv_heads, rank, length)",
    ),
    "kv_mask of one sample": (
        lambda: hw.lowrank_attend(Q, K, V, P, P, kv_mask=torch.ones(5, dtype=torch.bool)),
        hw.PatternError,
        "lowrank_attend: kv_mask must be (batch, kv_len), (2, 5) here, got (5,)\n"
        "  hint: True = real token; kv_mask.expand(batch, -1) repeats one row; a mask over queries "
        "and keys is for headwise.attend, as Dense(mask)",
    ),
    "kv_mask": (
        lambda: hw.lowrank_attend(Q, K, V, P, P, kv_mask=torch.ones(3, 5, dtype=torch.bool)),
        hw.PatternError,
        "lowrank_attend: kv_mask must be (batch, kv_len), (2, 5) here, got (3, 5)\n"
        "  hint: True = real token; kv_mask.expand(batch, -1) repeats one row; a mask over queries "
        "and keys is for headwise.attend, as Dense(mask)",
    ),
    "numbers of a mask": (
        lambda: hw.lowrank_attend(Q, K, V, P, P, kv_mask=torch.full((2, 5), 0.5)),
        hw.PatternError,
        "lowrank_attend, kv_mask: a mask must be boolean, or numbers that are all 0 or 1, got "
        "torch.float32 with other numbers\n"
        "  hint: True or 1 means may attend; numbers to add to the scores go into bias=",
    ),
    "scale": (
        lambda: hw.lowrank_attend(Q, K, V, P, P, scale=float("inf")),
        ValueError,
        "lowrank_attend: scale must be a finite number, got inf\n"
        "  hint: leave scale out for head_dim ** -0.5",
    ),
    "scale of letters": (
        lambda: hw.lowrank_attend(Q, K, V, P, P, scale="a"),  # type: ignore[arg-type]
        ValueError,
        "lowrank_attend: scale must be a finite number, got a\n"
        "  hint: leave scale out for head_dim ** -0.5",
    ),
    "scales": (
        lambda: hw.lowrank_attend(Q, K, V, P, P, scale=torch.ones(2)),  # type: ignore[arg-type]
        ValueError,
        "lowrank_attend: scale must be a finite number, got tensor([1., 1.])\n"
        "  hint: leave scale out for head_dim ** -0.5",
    ),
    "flag for a scale": (
        lambda: hw.lowrank_attend(Q, K, V, P, P, scale=True),
        ValueError,
        "lowrank_attend: scale must be a finite number, got True\n"
        "  hint: leave scale out for head_dim ** -0.5",
    ),
    "learned scale": (
        lambda: hw.lowrank_attend(Q, K, V, P, P, scale=torch.ones(()).requires_grad_()),  # type: ignore[arg-type]
        ValueError,
        "lowrank_attend: scale must be a number, got a tensor that wants a gradient\n"
        "  hint: multiply query by it instead, and pass scale=1.0",
    ),
    "key heads": (
        lambda: hw.lowrank_attend(Q[:, :3], K, V, P, P),
        hw.ShapeError,
        "lowrank_attend: kv_heads must divide q_heads, got 2 and 3\n"
        "  query  (2, 3, 3, 8) torch.float32 cpu\n"
        "  key    (2, 2, 5, 8) torch.float32 cpu\n"
        "  value  (2, 2, 5, 6) torch.float32 cpu\n"
        "  hint: pass key and value with 1 head (multi-query) or a divisor of q_heads (grouped)",
    ),
    "unknown backend": (
        lambda: hw.lowrank_attend(Q, K, V, P, P, backend="fast"),
        ValueError,
        "lowrank_attend: unknown backend 'fast'\n"
        "  hint: choose one of 'auto', 'native', 'flex', 'sdpa', 'reference'",
    ),
}


@pytest.mark.parametrize(("call", "kind", "text"), CALLS.values(), ids=CALLS)
def test_refusals(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text


def test_a_named_backend_refuses_with_its_reasons() -> None:
    wide = [t.double() for t in (Q, K, V, P, P)]
    with pytest.raises(hw.BackendRefused, match=r"lowrank_attend: the backend 'native'(.|\n)*64"):
        hw.lowrank_attend(*wide, backend="native")


def test_there_is_no_causal_form() -> None:
    """Neither a flag nor a pattern is taken; the docstring says what to use."""
    for name in ("causal", "pattern", "bias", "mask"):
        with pytest.raises(TypeError, match=name):
            hw.lowrank_attend(Q, K, V, P, P, **{name: None})  # type: ignore[arg-type]
    assert hw.lowrank_attend.__doc__ is not None
    assert "causal" in hw.lowrank_attend.__doc__


MASKS: dict[str, Tensor] = {
    "whole numbers": torch.tensor([[1, 1, 0, 1, 0]]).expand(2, 5),
    "numbers": torch.tensor([[1.0, 1.0, 0.0, 1.0, 0.0]]).expand(2, 5),
    "booleans": torch.tensor([[True, True, False, True, False]]).expand(2, 5),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_forms_of_a_padding_mask(mask: Tensor) -> None:
    query, key, value = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 6)
    projection = torch.randn(2, 7, 5)
    found = hw.lowrank_attend(query, key, value, projection, projection, kv_mask=mask)
    real = torch.tensor([0, 1, 3])
    cut = projection[..., real]
    wanted = hw.lowrank_attend(query, key[:, :, real], value[:, :, real], cut, cut)
    torch.testing.assert_close(found, wanted)


def test_under_autocast_all_five_are_rounded() -> None:
    query, key, value = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 6)
    projection = torch.randn(2, 7, 5)
    given = (query, key, value, projection, projection)
    with torch.autocast("cpu", torch.bfloat16):
        found = hw.lowrank_attend(*given)
        spelled = hw.lowrank_attend(*given, backend="reference")
    assert found.dtype == spelled.dtype == torch.bfloat16
    rounded = [t.bfloat16() for t in given]
    torch.testing.assert_close(found, hw.lowrank_attend(*rounded))
    torch.testing.assert_close(spelled, hw.lowrank_attend(*rounded, backend="reference"))

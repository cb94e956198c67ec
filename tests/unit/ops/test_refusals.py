"""The whole text of every refusal of ``attend`` and its kin."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import headwise as hw
from headwise import BackendRefused, DtypeError, PatternError, ShapeError
from headwise.patterns import Pattern
from tests.support.shapes import Inputs

pytestmark = pytest.mark.usefixtures("plain_calls")

Q, K, V = (2, 6, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)
LAYOUT = "the layout is (batch…, heads, length, dim)"

FIT = Inputs(torch.zeros(Q), torch.zeros(K), torch.zeros(V))


def zeros(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.zeros(shape) for shape in shapes]


def rows(*shapes: tuple[int, ...], dtypes: str = "fff", extra: str = "") -> str:
    kinds = {"f": "torch.float32", "d": "torch.float64", "i": "torch.int64"}
    names = ("query", "key", "value")
    width = max(5, len(extra.split(" ", 1)[0]))
    lines = [
        f"  {name:<{width}}  {shape} {kinds[kind]} cpu"
        for name, shape, kind in zip(names, shapes, dtypes, strict=False)
    ]
    return "\n".join(lines + ([f"  {extra}"] if extra else []))


SHAPES = [
    (
        [(2, 5, 5, 8), (2, 2, 7, 8), (2, 2, 7, 4)],
        "kv_heads must divide q_heads, got 2 and 5",
        "pass key and value with 1 head (multi-query) or a divisor of q_heads (grouped)",
    ),
    (
        [Q, (2, 0, 7, 8), (2, 0, 7, 4)],
        "kv_heads must divide q_heads, got 0 and 6",
        "pass key and value with 1 head (multi-query) or a divisor of q_heads (grouped)",
    ),
    (
        [Q, K, (2, 2, 7, 4)],
        "key and value must have the same heads and length",
        "there is one value for every key; only the last dimension may differ",
    ),
    (
        [Q, K, (2, 3, 6, 4)],
        "key and value must have the same heads and length",
        "there is one value for every key; only the last dimension may differ",
    ),
    (
        [Q, (2, 3, 7, 4), V],
        "query and key must have the same head_dim, got 8 and 4",
        LAYOUT,
    ),
    (
        [Q, (1, 3, 7, 8), (1, 3, 7, 4)],
        "query, key and value must have the same leading dimensions",
        "expand them yourself, as in key.expand(batch, -1, -1, -1); nothing is broadcast",
    ),
    (
        [(5, 8), (7, 8), (7, 4)],
        "query, key and value must have the same number of dimensions, at least 3",
        f"{LAYOUT}; (heads, length, dim) is one sample",
    ),
    (
        [Q, (3, 7, 8), (3, 7, 4)],
        "query, key and value must have the same number of dimensions, at least 3",
        f"{LAYOUT}; (heads, length, dim) is one sample",
    ),
]


@pytest.mark.parametrize(("shapes", "problem", "hint"), SHAPES)
@pytest.mark.parametrize("run", [hw.attend, hw.attend_with_lse, hw.explain])
def test_shapes(
    run: Callable[..., Any], shapes: list[tuple[int, ...]], problem: str, hint: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        run(*zeros(*shapes))
    wanted = f"{run.__name__}: {problem}\n{rows(*shapes)}\n  hint: {hint}"
    assert str(caught.value) == wanted


def test_mixed_dtypes() -> None:
    with pytest.raises(DtypeError) as caught:
        hw.attend(torch.zeros(Q), torch.zeros(K), torch.zeros(V, dtype=torch.float64))
    assert str(caught.value) == (
        "attend: query, key and value must share one floating-point dtype\n"
        f"{rows(Q, K, V, dtypes='ffd')}\n  hint: convert them with .to(dtype)"
    )


def test_integers() -> None:
    with pytest.raises(DtypeError) as caught:
        hw.attend(*Inputs(*(t.long() for t in FIT)))
    assert str(caught.value) == (
        "attend: query, key and value must share one floating-point dtype\n"
        f"{rows(Q, K, V, dtypes='iii')}\n  hint: convert them with .to(dtype)"
    )


def test_devices() -> None:
    elsewhere = torch.zeros(V, device="meta")
    with pytest.raises(DtypeError) as caught:
        hw.attend(torch.zeros(Q), torch.zeros(K), elsewhere)
    assert str(caught.value) == (
        "attend: query, key and value must be on one device\n"
        f"{rows(Q, K)}\n  value  {V} torch.float32 meta\n  hint: move them with .to(device)"
    )


@pytest.mark.parametrize("shape", [(6, 5, 7), (2, 6, 5, 6), (3, 1, 1, 1), (1, 1, 2, 6, 5, 7)])
def test_bias_that_does_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError) as caught:
        hw.attend(*FIT, bias=torch.zeros(shape))
    assert str(caught.value) == (
        "attend: bias must broadcast to (2, 6, 5, 7), with 2 or fewer dimensions or all 4\n"
        f"{rows(Q, K, extra=f'bias   {shape} torch.float32 cpu')}\n"
        "  hint: say which axis is missing with bias[:, None] or bias[None]"
    )


@pytest.mark.parametrize("bias", [torch.zeros(5, 7, dtype=torch.bool), torch.zeros(5, 7).long()])
def test_bias_that_is_no_number_to_add(bias: torch.Tensor) -> None:
    with pytest.raises(DtypeError) as caught:
        hw.attend(*FIT, bias=bias)
    assert str(caught.value) == (
        f"attend: bias must be a floating-point tensor, Alibi or RelativeBias, "
        f"got {bias.dtype}\n"
        f"{rows(Q, K)}\n  hint: a boolean mask is a pattern: pass Dense(mask)"
    )


def test_sinks_of_another_size() -> None:
    with pytest.raises(ShapeError) as caught:
        hw.attend(*FIT, sinks=torch.zeros(3))
    assert str(caught.value) == (
        "attend: sinks must hold one number per query head\n"
        f"  query  {Q} torch.float32 cpu\n  sinks  (3,) torch.float32 cpu\n"
        "  hint: give a tensor of shape (q_heads,)"
    )


@pytest.mark.parametrize("share", [-0.5, 1.5, float("nan")])
def test_dropout_outside_its_range(share: float) -> None:
    with pytest.raises(ValueError, match="dropout_p") as caught:
        hw.attend(*FIT, dropout_p=share)
    assert str(caught.value) == (
        f"attend: dropout_p must lie between 0 and 1, got {share}\n"
        "  hint: dropout_p is the share of weights set to zero"
    )


@pytest.mark.parametrize("cap", [0.0, -1.0, float("nan")])
def test_softcap_outside_its_range(cap: float) -> None:
    with pytest.raises(ValueError, match="softcap") as caught:
        hw.attend(*FIT, softcap=cap)
    assert str(caught.value) == (
        f"attend: softcap must be above 0 and finite, got {cap}\n"
        "  hint: leave softcap out for scores without a cap"
    )


@pytest.mark.parametrize("run", [hw.attend, hw.attend_with_lse, hw.explain])
def test_unknown_backend(run: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="backend") as caught:
        run(*zeros(Q, K, V), backend="flash")
    assert str(caught.value) == (
        f"{run.__name__}: unknown backend 'flash'\n"
        "  hint: choose one of 'auto', 'native', 'flex', 'sdpa', 'reference'"
    )


def test_a_mask_is_no_pattern() -> None:
    mask: Any = torch.ones(5, 7, dtype=torch.bool)
    with pytest.raises(PatternError) as caught:
        hw.attend(*FIT, mask)
    assert str(caught.value) == (
        "attend: pattern must be a Pattern, got Tensor\n"
        "  hint: wrap a boolean mask as Dense(mask), a padding mask (batch, kv_len) as "
        "KeyMask(mask); numbers to add to the scores go into bias="
    )


@pytest.mark.parametrize(
    ("pattern", "held"),
    [
        (hw.Lengths([1, 2, 3]), "samples as the call has, or 1, got 3 for 2"),
        (hw.Dense(torch.ones(1, 3, 1, 1)), "heads as the call has, or 1, got 3 for 6"),
    ],
)
def test_a_pattern_for_other_sizes(pattern: Pattern, held: str) -> None:
    with pytest.raises(PatternError) as caught:
        hw.attend(*FIT, pattern)
    assert str(caught.value) == (
        f"attend: the pattern must tell apart as many {held}\n  pattern  {pattern!r}\n"
        f"  hint: build the pattern for the {held.split(' ', 1)[0]} of this call"
    )


def test_offsets_for_other_samples() -> None:
    with pytest.raises(PatternError) as caught:
        hw.attend(*FIT, hw.Causal(), q_offset=torch.tensor([0, 1, 2]))
    assert str(caught.value) == (
        "attend: offsets must be one int, or one per sample, got 3 for 2 samples\n"
        "  hint: the samples are the leading dimensions of query"
    )


def test_equal_offsets_for_other_samples_are_refused_too() -> None:
    with pytest.raises(PatternError, match="got 3 for 2 samples"):
        hw.attend(*FIT, hw.Causal(), q_offset=torch.tensor([1, 1, 1]))


def test_a_row_that_does_not_exist() -> None:
    query, key, _ = zeros(Q, K, V)
    with pytest.raises(IndexError) as caught:
        hw.attention_weights(query, key, rows=[0, 5])
    assert str(caught.value) == "attention_weights: rows=5 is out of range for size 5"


def test_a_backend_that_refuses_lists_every_reason() -> None:
    with pytest.raises(BackendRefused) as caught:
        hw.attend_with_lse(*FIT, softcap=1.0, sinks=torch.zeros(6), backend="sdpa")
    assert str(caught.value) == (
        "attend_with_lse: the backend 'sdpa' will not take this call\n"
        "  sdpa: it returns no log-sum-exp\n"
        "  sdpa: it has no softcap\n"
        "  sdpa: it has no sinks\n"
        '  hint: backend="auto" takes one that can; explain(…) lists them all'
    )


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "a", True, torch.ones(2)])
def test_a_scale_that_is_no_number(scale: Any) -> None:
    wanted = rf"^attend: scale must be a finite number, got {re.escape(str(scale))}\n"
    with pytest.raises(ValueError, match=wanted):
        hw.attend(*FIT, scale=scale)


@pytest.mark.parametrize(("name", "rule"), [("softcap", "above 0"), ("dropout_p", "between 0")])
def test_a_cap_or_a_share_that_is_no_number(name: str, rule: str) -> None:
    given: dict[str, Any] = {name: "a"}
    with pytest.raises(ValueError, match=rf"^attend: {name} must .*{rule}.*, got a\n"):
        hw.attend(*FIT, **given)

"""What a call adds to its scores, its heads, its places and its second result, in ONNX."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from typing_extensions import override

import headwise as hw
from tests.export.sessions import Session, session
from tests.support.budget import assert_within_budget

HEADS = 4
FLAGS = torch.rand(HEADS, 1, 1, generator=torch.Generator().manual_seed(1))
SINKS = torch.randn(HEADS, generator=torch.Generator().manual_seed(2))
CALLS: dict[str, tuple[hw.patterns.Pattern | None, dict[str, Any]]] = {
    "bias by head": (hw.Window(2, 1), {"bias": FLAGS[None]}),
    "closing bias": (
        None,
        {"bias": torch.tensor([0.5, float("-inf")]).view(1, 2, 1, 1)[:, [1, 0, 1, 1]]},
    ),
    "the lowest bias": (
        hw.Causal(),
        {"bias": torch.full((1, HEADS, 1, 1), torch.finfo(torch.float32).min)},
    ),
    "alibi": (hw.Causal(), {"bias": hw.positions.Alibi(HEADS)}),
    "relative": (None, {"bias": hw.positions.RelativeBias(HEADS)}),
    "cap": (None, {"softcap": 0.7}),
    "cap under a mask": (hw.Causal(), {"softcap": 0.7}),
    "sinks": (hw.Window(1, 0), {"sinks": SINKS}),
    "scale of zero": (hw.Causal(), {"scale": 0.0}),
    "negative scale": (hw.Causal(), {"scale": -0.4}),
    "other places": (hw.Window(2, 0), {"q_offset": 3, "kv_offset": 1}),
    "behind its keys": (hw.Causal(), {"q_offset": -2}),
}


WITH_LSE = ("sinks", "behind its keys")


class Calls(nn.Module):
    @override
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        for name in CALLS:
            found += attended(name, (query, key, value))
        return found


def attended(name: str, given: Sequence[Tensor], backend: str = "auto") -> list[Tensor]:
    """Return the output, and for some calls the log-sum-exp."""
    (query, key, value), (pattern, extras) = given, CALLS[name]
    if query.dtype == torch.float64:
        extras = {key: _wide(part) for key, part in extras.items()}
    output, lse = hw.attend_with_lse(query, key, value, pattern, **extras, backend=backend)
    return [output, lse] if name in WITH_LSE else [output]


def heads(q_len: int, kv_len: int) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (2, HEADS, q_len, 8), (2, 2, kv_len, 8), (2, 2, kv_len, 5)
    query, key, value = (torch.randn(shape) for shape in shapes)
    return query, key, value


@pytest.fixture(scope="module")
def exported() -> Session:
    keys = Dim("keys", min=2)
    return session(Calls(), heads(3, 7), ({2: Dim.DYNAMIC}, {2: keys}, {2: keys}))


@pytest.mark.parametrize(("q_len", "kv_len"), [(3, 7), (11, 5), (13, 13)])
def test_calls_keep_their_numbers(exported: Session, q_len: int, kv_len: int) -> None:
    given = heads(q_len, kv_len)
    found = iter(exported(*given))
    for name in CALLS:
        plain = attended(name, given, backend="reference")
        exact = attended(name, [tensor.double() for tensor in given], backend="reference")
        for wanted, precise in zip(plain, exact, strict=True):
            assert_within_budget(next(found), exact=precise, plain=wanted.float(), label=name)


def _wide(part: Any) -> Any:
    return part.double() if isinstance(part, Tensor) else part


def test_numbers_that_no_query_sees(exported: Session) -> None:
    """Windows of the last queries leave the first keys alone, without any mask that says so."""
    query, key, value = heads(3, 11)
    unseen = torch.arange(11).unsqueeze(1) < 6
    given = query, key.masked_fill(unseen, torch.nan), value.masked_fill(unseen, torch.nan)
    names = [name for name in CALLS for _ in range(1 + (name in WITH_LSE))]
    for name, found, clean in zip(
        names, exported(*given), exported(query, key, value), strict=True
    ):
        if name in ("bias by head", "sinks"):
            torch.testing.assert_close(found, clean, msg=name)


class Halves(nn.Module):
    @override
    def forward(self, x: Tensor) -> Tensor:
        return hw.attend(x, x, x, hw.Window(3, 0))


def test_halves_are_summed_in_float32() -> None:
    x = torch.randn(2, 3, 17, 8).half()
    (found,) = session(Halves(), (x,))(x)
    plain = hw.attend(x, x, x, hw.Window(3, 0), backend="reference")
    wide = x.double()
    exact = hw.attend(wide, wide, wide, hw.Window(3, 0), backend="reference")
    assert_within_budget(found, exact=exact, plain=plain, label="float16")


def test_graphs_ask_for_nothing_more_than_they_return() -> None:
    """Causal attention of equal lengths needs no mask, and nobody asked for its log-sum-exp."""

    class Causal(nn.Module):
        @override
        def forward(self, x: Tensor) -> Tensor:
            return hw.attend(x, x, x, hw.Causal())

    x = torch.randn(1, 2, 5, 8)
    assert session(Causal(), (x,), optimize=True).nodes == ["Attention"]

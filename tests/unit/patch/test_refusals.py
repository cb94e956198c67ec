"""What stays with torch: every reason, and torch's own results and errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functionalize
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import headwise as hw
from headwise import _native
from tests.support.sdpa_calls import taken

Q, K = torch.randn(2, 4, 3, 8), torch.randn(2, 4, 5, 8)


class Named(Tensor):
    """A class of others."""


def args(*given: Any, **more: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return given, more


REFUSED: dict[str, tuple[tuple[tuple[Any, ...], dict[str, Any]], str]] = {
    "float64": (args(Q.double(), K.double(), K.double()), "the dtype is torch.float64"),
    "integers": (args(Q.long(), K.long(), K.long()), "the dtype is torch.int64"),
    "dtypes": (args(Q, K.half(), K), "dtypes differ: torch.float32, torch.float16, torch.float32"),
    "meta": (args(Q.to("meta"), K.to("meta"), K.to("meta")), "a tensor is on meta"),
    "sparse": (args(Q.to_sparse(), K, K), "a tensor has the layout torch.sparse_coo"),
    "a list": (args(Q, K, [1.0]), "an argument is a list"),
    "a class": (args(Q.as_subclass(Named), K, K), "an argument is a Named"),
    "numbers for bools": (
        args(Q, K, K, is_causal=1),
        "is_causal and enable_gqa are not both bools",
    ),
    "mask of int64": (args(Q, K, K, torch.ones(3, 5).long()), "attn_mask is torch.int64"),
    "mask of float64": (args(Q, K, K, torch.ones(3, 5).double()), "attn_mask is torch.float64"),
    "mask of float16": (args(Q, K, K, torch.ones(3, 5).half()), "attn_mask is torch.float16"),
    "mask and causal": (
        args(Q, K, K, torch.zeros(3, 5), is_causal=True),
        "attn_mask and is_causal are both given, which torch refuses or joins",
    ),
    "no queries": (args(Q[:, :, :0], K, K), "a size is zero"),
    "no keys": (args(Q, K[:, :, :0], K[:, :, :0]), "a size is zero"),
    "no batch": (args(Q[:0], K[:0], K[:0]), "a size is zero"),
    "one dimension": (args(Q[0, 0, 0], K, K), "the sizes of query, key and value do not fit"),
    "head_dim": (args(Q, K[..., :7], K), "the sizes of query, key and value do not fit each other"),
    "heads": (args(Q, K[:, :2], K[:, :2]), "the sizes of query, key and value do not fit"),
    "groups": (args(Q, K[:, :3], K[:, :3], enable_gqa=True), "the sizes of query, key and value"),
    "values grouped otherwise": (args(Q, K[:, :2], K, enable_gqa=True), "the sizes of query, key"),
    "grouped matrices": (args(Q[0, 0], K[0, 0], K[0, 0], enable_gqa=True), "the sizes of query"),
    "batches": (args(Q, K[:1].expand(3, -1, -1, -1), K[:1]), "the sizes of query, key and value"),
    "mask of one dimension": (args(Q, K, K, torch.zeros(5)), "attn_mask does not broadcast to"),
    "mask of none": (args(Q, K, K, torch.tensor(True)), "attn_mask does not broadcast to"),
    "mask too long": (args(Q, K, K, torch.zeros(3, 6)), "attn_mask does not broadcast to"),
    "mask of more samples": (
        args(Q[:1], K[:1], K[:1], torch.zeros(2, 1, 3, 5)),
        "attn_mask does not broadcast to (batch…, heads, q_len, kv_len)",
    ),
    "mask of the values' samples": (
        args(Q[:1], K[:1], K, torch.zeros(2, 1, 3, 5)),
        "attn_mask does not broadcast to (batch…, heads, q_len, kv_len)",
    ),
    "dropout_p above 1": (args(Q, K, K, dropout_p=1.5), "dropout_p is no plain number between"),
    "dropout_p below 0": (args(Q, K, K, dropout_p=-0.5), "dropout_p is no plain number between"),
    "dropout_p as a tensor": (
        args(Q, K, K, dropout_p=torch.tensor(0.0)),
        "dropout_p is no plain number between 0 and 1",
    ),
    "scale without end": (args(Q, K, K, scale=float("inf")), "scale is no plain finite number"),
    "scale as a tensor": (args(Q, K, K, scale=torch.tensor(2.0)), "scale is no plain finite"),
}


def outcome(run: Callable[[], Tensor]) -> Any:
    """Return a result, or the kind and text of an error."""
    try:
        return run()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", REFUSED)
def test_torch_computes_it_and_says_what_is_wrong(name: str) -> None:
    (given, more), reason = REFUSED[name]
    said = hw.patch.explain(*given, **more)
    assert not said.taken
    assert said.plan is None
    assert str(said).startswith(f"torch's own, because:\n  {reason}")
    found: list[Any] = []

    def run() -> None:
        found.append(outcome(lambda: functional.scaled_dot_product_attention(*given, **more)))

    assert taken(run) == 0
    run()
    patched, plain = found
    if isinstance(plain, Tensor):
        torch.testing.assert_close(patched, plain, rtol=0, atol=0, equal_nan=True)
        assert type(patched) is type(plain)
    else:
        assert patched[0] is plain[0]
        assert patched[1].replace(" (position 6)", "") == plain[1]


def test_every_reason_is_told() -> None:
    said = hw.patch.explain(Q, K[..., :7], K, dropout_p=2.0, scale=float("nan"))
    assert len(said.refusals) == 3


def test_a_call_that_is_taken_is_explained() -> None:
    said = hw.patch.explain(Q[:1], K, K, torch.ones(3, 5, dtype=torch.bool), scale=0.5)
    assert said.taken
    assert said.refusals == ()
    assert said.plan is not None
    assert said.plan.backend == "native"


def test_an_explanation_names_who_computes() -> None:
    assert str(hw.patch.Route((), "a plan")) == "headwise.attend\na plan"  # type: ignore[arg-type]
    assert str(hw.patch.Route(("so",), None)) == "torch's own, because:\n  so"


@pytest.mark.parametrize(
    ("backends", "count"),
    [
        ([SDPBackend.MATH], 0),
        ([SDPBackend.FLASH_ATTENTION], 0),
        ([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], 1),
    ],
)
def test_kernels_that_are_asked_for_are_torchs(backends: list[SDPBackend], count: int) -> None:
    with sdpa_kernel(backends):
        assert taken(lambda: functional.scaled_dot_product_attention(Q, K, K)) == count
        said = hw.patch.explain(Q, K, K)
    assert said.taken == bool(count)
    if not count:
        assert "by sdpa_kernel or torch.backends.cuda" in str(said)


def test_without_the_compiled_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "kernels", None)
    monkeypatch.setattr(_native, "reason", "it was not built")
    assert hw.patch.explain(Q, K, K).refusals == ("it was not built",)
    with hw.patch.sdpa():
        assert functional.scaled_dot_product_attention(Q, K, K).shape == Q.shape


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_transforms_that_kernels_do_not_know() -> None:
    said = []

    def asked(query: Tensor) -> Tensor:
        said.append(hw.patch.explain(query, K, K).refusals)
        return functional.scaled_dot_product_attention(query, K, K)

    with hw.patch.sdpa():
        functionalize(asked)(Q)
        with forward_ad.dual_level():
            asked(Q)
        torch.jit.trace(asked, (Q,), check_trace=False)  # type: ignore[no-untyped-call]
    assert said == [
        ("torch.func.functionalize is active",),
        ("a forward-mode derivative may be wanted",),
        ("torch.jit is tracing the call",),
    ]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors() -> None:
    nested = torch.nested.nested_tensor([Q[0, :, :2], Q[1]])
    jagged = torch.nested.nested_tensor(
        [Q[0].transpose(0, 1)[:2], Q[1].transpose(0, 1)], layout=torch.jagged
    ).transpose(1, 2)
    for given, reason in (
        (nested, "a tensor is nested"),
        (jagged, "an argument is a NestedTensor"),
    ):
        assert hw.patch.explain(given, given, given).refusals == (reason,)
        wanted = functional.scaled_dot_product_attention(given, given, given)
        with hw.patch.sdpa():
            found = functional.scaled_dot_product_attention(given, given, given)
        for ours, theirs in zip(found.unbind(), wanted.unbind(), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("bias", [causal_upper_left(3, 5), causal_lower_right(3, 5)])
def test_torchs_causal_biases_come_to_a_call_that_is_taken(bias: Tensor) -> None:
    wanted = functional.scaled_dot_product_attention(Q, K, K, bias)
    found: list[Tensor] = []
    assert taken(lambda: found.append(functional.scaled_dot_product_attention(Q, K, K, bias))) == 1
    torch.testing.assert_close(found[0], wanted)

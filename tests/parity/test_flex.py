"""The ``flex`` backend on the CPU: what it hands to FlexAttention gives the right numbers.

It runs on CUDA only. Here its calls go through torch's own plain version of the same function,
which spells the scores out.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import flex_attention

import headwise as hw
from headwise.ops.softmax import flex, reference, refusals
from headwise.ops.softmax.call import Call as Settled
from headwise.ops.softmax.call import Computed
from headwise.ops.softmax.settle import Extras, settle
from headwise.patterns import Pattern
from headwise.positions import RelativeBias
from tests.support.budget import assert_within_budget
from tests.support.calls import Call, calls
from tests.support.oracle import Extras as OracleExtras
from tests.support.oracle import attention
from tests.support.shapes import Inputs, Sizes, inputs
from tests.support.strategies import position_biases

SIZES = Sizes(2, 2, 2, 37, 53, 16, 32)
ON_CPU = "it is for CUDA, and the tensors are on cpu"


def spelled_out(*args: Any, **kwargs: Any) -> Any:
    """Run torch's plain version, which says at every call that it is slow, without a compiler."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True
        )
        return flex_attention(*args, **kwargs)


def settled(given_: Inputs, pattern: Pattern | None, **extras: Any) -> Settled:
    query, key, value = given_
    found = Extras(None, None, None, None, 0.0, None, 0)._replace(**extras)
    return settle("attend", query, key, value, pattern, found, True)


@settings(max_examples=2 * settings().max_examples)
@given(data=st.data())
def test_values(data: st.DataObject) -> None:
    call = data.draw(calls(q_lens=(1, 5, 49), kv_lens=(1, 31, 129)))
    softcap = data.draw(st.sampled_from([None, None, 1.5]))
    found = flex.through(
        spelled_out, settled(call.given, call.pattern, softcap=softcap, **call.keywords)
    )
    check(found, call, softcap)


def check(found: Computed, call: Call, softcap: float | None) -> None:
    extras = OracleExtras(softcap=softcap)
    said: Any = {"bias": call.bias, "scale": call.scale, "extras": extras}
    exact = attention(*call.given, call.visible(), **said)
    plain = attention(*call.given, call.visible(), dtype=torch.float32, **said)
    assert found.lse is not None
    assert found.lse.dtype == torch.float32
    assert_within_budget(found.output, exact=exact.output, plain=plain.output, label="output")
    assert_within_budget(found.lse, exact=exact.lse, plain=plain.lse, label="lse")
    closed = exact.lse.isinf()
    assert torch.equal(found.output[closed], torch.zeros_like(found.output[closed]))


@given(data=st.data())
def test_biases_by_distance(data: st.DataObject) -> None:
    call = data.draw(calls(q_lens=(1, 5, 49), kv_lens=(1, 31, 129)))
    bias = data.draw(position_biases(call.setting.heads))
    said: Any = {**call.keywords, "bias": bias}
    wide = Inputs(*(tensor.double() for tensor in call.given))
    with torch.no_grad():
        found = flex.through(spelled_out, settled(call.given, call.pattern, **said))
        plainly = reference.run(settled(call.given, call.pattern, **said))
        exact = reference.run(settled(wide, call.pattern, **said))
    for ours, plain, right in zip(found, plainly, exact, strict=True):
        assert ours is not None
        assert plain is not None
        assert right is not None
        assert_within_budget(ours, exact=right, plain=plain, label=type(bias).__name__)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    given_ = inputs(SIZES, dtype=dtype)
    found = flex.through(spelled_out, settled(given_, hw.Causal()))
    visible = hw.Causal().dense(37, 53)
    exact = attention(*given_, visible)
    plain = attention(*given_, visible, dtype=dtype)
    assert found.output.dtype == dtype
    assert found.lse is not None
    assert found.lse.dtype == torch.float32
    assert_within_budget(found.output, exact=exact.output, plain=plain.output, label="output")


def test_small_patterns_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def remember(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["block_mask"])
        return spelled_out(*args, **kwargs)

    for _ in range(2):
        flex.through(remember, settled(inputs(SIZES), hw.Causal() & hw.Window(9, 0)))
        flex.through(remember, settled(inputs(SIZES), hw.Dense(torch.ones(1, 1, 1, 1))))
    assert seen[0] is seen[2]
    big = hw.Dense(torch.ones(1100, 1100))
    for _ in range(2):
        flex.through(remember, settled(inputs(SIZES._replace(q_len=1100, kv_len=1100)), big))
    assert seen[4] is not seen[5]


def test_a_mask_first_met_in_inference_serves_training() -> None:
    seen: list[Any] = []

    def remember(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["block_mask"])
        return spelled_out(*args, **kwargs)

    with torch.inference_mode():
        flex.through(remember, settled(inputs(SIZES), hw.Lengths(29)))
    assert not seen[0].kv_indices.is_inference()
    assert not seen[0].q_indices.is_inference()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sinks": torch.zeros(4)}, "it has no sinks"),
    ({"dropout_p": 0.5}, "it has no dropout"),
    (
        {"bias": torch.zeros(37, 53, requires_grad=True)},
        "it sums the gradient of a bias in an order that changes from run to run",
    ),
    (
        {"bias": RelativeBias(4)},
        "it sums the gradient of a bias in an order that changes from run to run",
    ),
]


@pytest.mark.parametrize(("extras", "reason"), REFUSED)
def test_what_it_has_not(extras: dict[str, Any], reason: str) -> None:
    assert refusals.flex(settled(inputs(SIZES), None, **extras)) == [ON_CPU, reason]


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (SIZES._replace(head_dim=8), "it takes heads of 16 numbers or more, and these have 8"),
        (SIZES._replace(value_dim=4), "it takes heads of 16 numbers or more, and these have 4"),
        (SIZES._replace(kv_len=0), "a size is zero"),
    ],
)
def test_sizes_that_it_does_not_take(sizes: Sizes, reason: str) -> None:
    assert refusals.flex(settled(inputs(sizes), None)) == [ON_CPU, reason]


def test_other_reasons() -> None:
    given_ = inputs(SIZES)
    assert refusals.flex(settled(given_, hw.Causal())) == [ON_CPU]
    with torch.no_grad():
        assert refusals.flex(settled(given_, None, bias=RelativeBias(4))) == [ON_CPU]
    wide = "it computes float32, bfloat16 and float16, and the tensors are torch.float64"
    assert refusals.flex(settled(inputs(SIZES, dtype=torch.float64), None)) == [ON_CPU, wide]
    with torch.autograd.forward_ad.dual_level():
        reason = "it has no forward-mode derivative, and one may be wanted"
        assert refusals.flex(settled(given_, None)) == [ON_CPU, reason]
    found: list[list[str]] = []

    def asked(query: Tensor) -> Tensor:
        found.append(refusals.flex(settled(given_._replace(query=query), None)))
        return query

    torch.func.vmap(asked)(given_.query.unsqueeze(0))
    hidden = "a torch.func transform is active, and it has to read the numbers of the call"
    assert found == [[ON_CPU, hidden]]


def on_cuda() -> Settled:
    """Return a call whose tensors say that they are on CUDA and hold no numbers."""
    with FakeTensorMode():
        fake = Inputs(*(torch.empty(1, 4, 5, 16, device="cuda") for _ in range(3)))
    return settled(fake, hw.Causal())


def test_what_it_needs_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "find_spec", lambda name: None)
    assert refusals.flex(on_cuda()) == [
        "torch compiles it through triton, which is not installed",
        "a tensor is a FakeTensor, and it has to read the numbers of the call",
    ]


def test_masked_nan_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "find_spec", lambda name: name)
    monkeypatch.setattr(refusals, "_hidden", lambda call: None)
    call = on_cuda()
    for finite in (True, False):
        monkeypatch.setattr(refusals, "_stays_finite", lambda call, finite=finite: finite)
        reason = "scores may be NaN or infinite, which it lets through where they are masked"
        assert refusals.flex(call) == ([] if finite else [reason])
        assert refusals.flex(call._replace(pattern=None)) == []


def test_it_stands_before_sdpa_and_refuses_the_cpu() -> None:
    plan = hw.explain(*inputs(SIZES))
    names = list(plan.refusals)
    assert names.index("native") < names.index("flex") < names.index("sdpa")
    assert plan.refusals["flex"] == [ON_CPU]
    with pytest.raises(hw.BackendRefused) as caught:
        hw.attend(*inputs(SIZES), backend="flex")
    assert str(caught.value) == (
        f"attend: the backend 'flex' will not take this call\n  flex: {ON_CPU}\n"
        '  hint: backend="auto" takes one that can; explain(…) lists them all'
    )

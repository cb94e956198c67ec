"""Another mechanism in the layer: what it is asked, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.nn import AttentionCall, Cost, Mechanism, Step
from tests.support.budget import assert_same_bits, largest_error

X = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(1))


class Mean(nn.Module):
    """Every query gets the mean of the values that it may see, weighed by a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.asked: list[AttentionCall] = []

    def forward(self, call: AttentionCall, state: object = None) -> Step:
        """Return the weighed means; there is no state."""
        self.asked.append(call)
        return Step(self.factor * self.reference(call), state)

    def state(self, call: AttentionCall) -> object:
        """Return ``None``: all keys are needed."""
        return None

    def cost(
        self, q_len: int, kv_len: int, *, q_heads: int, kv_heads: int, head_dim: int, value_dim: int
    ) -> Cost:
        """Count the sums."""
        return Cost(q_heads * q_len * kv_len * value_dim, 4 * kv_len * value_dim, "O(q_len kv_len)")

    def reference(self, call: AttentionCall) -> Tensor:
        """Return the means."""
        return hw.attend(
            torch.zeros_like(call.query), call.key, call.value, call.allowed, q_offset=call.q_offset
        )


class Running:
    """The mean of all values up to now, by a state; it is no module."""

    def forward(self, call: AttentionCall, state: Any = None) -> Step:
        total, count = self.state(call) if state is None else state
        sums = total + call.value.cumsum(-2)
        counts = count + torch.arange(1, call.value.shape[-2] + 1).view(1, 1, -1, 1)
        return Step(sums / counts, (sums[..., -1:, :], counts[..., -1:, :]))

    def state(self, call: AttentionCall) -> Any:
        assert call.query.ndim == 4
        value = call.value
        return value.new_zeros(*value.shape[:2], 1, value.shape[3]), torch.zeros(
            len(value), 1, 1, 1
        )

    def cost(self, q_len: int, kv_len: int, **sizes: int) -> Cost:
        return Cost(0, 0, "O(q_len)")

    def reference(self, call: AttentionCall) -> Tensor:
        return hw.attend(torch.zeros_like(call.query), call.key, call.value, hw.Causal())


class Says(Mean):
    """Returns what it was made with, whatever that is."""

    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, call: AttentionCall, state: object = None) -> Any:
        return self.answer(self.reference(call))


class Meant(Running):
    """Something that can be called, and means another thing by it."""

    def __call__(self, call: AttentionCall) -> Step:
        raise AssertionError("this is no forward")


class NoForward(nn.Module):
    """A module with all methods but the one that counts."""

    state, cost, reference = Mean.state, Mean.cost, Mean.reference


def test_it_is_a_part_of_the_layer() -> None:
    mechanism = Mean()
    layer = hw.MultiHeadAttention(24, 4, num_kv_heads=2, mechanism=mechanism)
    assert isinstance(mechanism, Mechanism)
    assert "mechanism.factor" in layer.state_dict()
    layer(torch.randn(2, 5, 24)).sum().backward()
    assert mechanism.factor.grad is not None
    heard: list[object] = []
    mechanism.register_forward_hook(lambda *_: heard.append(1))
    layer(torch.randn(2, 5, 24))
    assert heard == [1]


def test_it_is_asked_all_that_the_layer_was() -> None:
    mechanism = Mean()
    layer = hw.MultiHeadAttention(
        24, 4, mechanism=mechanism, softcap=2.0, sinks=True, dropout=0.5, pattern=hw.Causal()
    )
    x, bias = torch.randn(2, 5, 24), torch.randn(5, 5)
    real, mask = torch.rand(2, 5) > 0.3, torch.rand(5, 5) > 0.3
    layer(x, mask=mask, kv_mask=real, pattern=hw.Window(2, 2), bias=bias, q_offset=3)
    (call,) = mechanism.asked
    assert call.pattern == hw.Causal() & hw.Window(2, 2) & hw.Dense(mask)
    assert call.allowed == call.pattern & hw.KeyMask(real)
    assert call.kv_mask is real
    assert call.bias is bias
    assert call.sinks is layer.sinks
    assert (call.softcap, call.dropout_p, call.q_offset, call.kv_offset) == (2.0, 0.5, 3, 3)
    assert (call.query.shape, call.value.shape) == ((2, 4, 5, 6), (2, 4, 5, 6))
    layer.eval()(x)
    assert mechanism.asked[-1].dropout_p == 0.0


def test_without_a_state_it_is_given_what_the_cache_holds() -> None:
    layer = hw.MultiHeadAttention(24, 4, mechanism=Mean(), pattern=hw.Causal()).double()
    x, cache = torch.randn(2, 7, 24, dtype=torch.float64), hw.KVCache()
    with torch.no_grad():
        steps = [layer(x[:, a:b], cache=cache) for a, b in ((0, 3), (3, 4), (4, 7))]
        assert largest_error(torch.cat(steps, 1), layer(x)) < 1e-14


def test_what_fails_leaves_the_cache_as_it_was() -> None:
    layer = hw.MultiHeadAttention(24, 4, mechanism=Mean()).eval()
    cache = hw.KVCache()
    layer(torch.randn(2, 3, 24), cache=cache)
    kept = cache.stored().key.clone()
    with pytest.raises(hw.PatternError):
        layer(torch.randn(2, 2, 24), kv_mask=torch.ones(2, 9, dtype=torch.bool), cache=cache)
    assert_same_bits(cache.stored().key, kept)


def test_a_state_is_kept_in_the_cache() -> None:
    layer = hw.MultiHeadAttention(24, 4, mechanism=Running()).double()
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    cache = hw.KVCache()
    with torch.no_grad():
        whole = layer(x)
        context = Running().reference(hw.nn.AttentionCall(*layer.project(x)))
        assert largest_error(whole, layer.W_o(layer.combine_heads(context))) < 1e-13
        steps = [layer(x[:, a:b], cache=cache) for a, b in ((0, 3), (3, 4), (4, 7))]
        assert largest_error(torch.cat(steps, 1), whole) < 1e-13
        assert cache.length() == 7
        cache.reorder(torch.tensor([1, 1]))
        again = layer(x[1:].expand(2, -1, -1)[:, :1], cache=cache)
        assert largest_error(again[0], again[1]) == 0.0
    with pytest.raises(hw.CacheError, match="state"):
        cache.crop(3)


def test_lengths_of_rows_are_for_softmax_attention_and_a_cache() -> None:
    layer, x = hw.MultiHeadAttention(24, 4, mechanism=Running()), torch.randn(2, 3, 24)
    with pytest.raises(hw.CacheError, match=r"q_lengths is for softmax(.|\n)*Running"):
        layer(x, cache=hw.KVCache(), q_lengths=[1, 3])
    with pytest.raises(TypeError, match="q_lengths says which tokens a cache stores"):
        layer(x, q_lengths=[1, 3])


@pytest.mark.parametrize(
    ("mechanism", "text"),
    [
        ("performer", r"got the name 'performer'\n  hint: .*headwise\.nn\.RandomFeatures"),
        ("linear", r"headwise\.nn\.LinearAttention"),
        ("Linformer", r"headwise\.nn\.LowRank"),
        ("magic", r"pass an object that follows headwise\.nn\.Mechanism"),
        (lambda call: call, "it has no forward, state, cost, reference"),
        (nn.Identity(), "it has no state, cost, reference"),
        (NoForward(), "it has no forward\n"),
        (Mean, "it is a class, not an object"),
        (3, "it has no forward"),
    ],
)
def test_what_is_no_mechanism_is_refused(mechanism: object, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        hw.MultiHeadAttention(24, 4, mechanism=mechanism)  # type: ignore[arg-type]


def test_explain_says_what_it_takes() -> None:
    plan = hw.MultiHeadAttention(24, 4, mechanism=Mean()).explain(torch.randn(2, 5, 24))
    assert plan.attention == Cost(4 * 5 * 5 * 6, 4 * 5 * 6, "O(q_len kv_len)")
    assert str(plan).startswith("mechanism   O(q_len kv_len); 600 FLOP, 120 B a sample\n")


@pytest.mark.parametrize("module", [True, False])
def test_one_sample_is_a_batch_of_one_to_it(module: bool) -> None:
    mechanism = Mean()
    given: Any = mechanism if module else Plain(mechanism)
    layer = hw.MultiHeadAttention(16, 4, num_kv_heads=2, mechanism=given)
    real, bias = torch.tensor([True, True, False, True]), torch.randn(4, 4, 4)
    one = layer(X[0], kv_mask=real, bias=bias)
    (call,) = mechanism.asked
    assert (call.query.shape, call.key.shape, call.value.shape) == (
        (1, 4, 4, 4),
        (1, 2, 4, 4),
        (1, 2, 4, 4),
    )
    assert call.kv_mask is not None
    assert call.kv_mask.shape == (1, 4)
    assert isinstance(call.bias, Tensor)
    assert call.bias.shape == (1, 4, 4, 4)
    assert one.shape == (4, 16)
    torch.testing.assert_close(layer(X[:1], kv_mask=real[None], bias=bias[None])[0], one)


class Plain:
    """The same mechanism as an object that is no module."""

    def __init__(self, of: Mean) -> None:
        self.forward, self.state = of.forward, of.state
        self.cost, self.reference = of.cost, of.reference


def test_of_what_is_no_module_forward_is_called() -> None:
    meant, plain = (hw.MultiHeadAttention(16, 4, mechanism=kind()) for kind in (Meant, Running))
    meant.load_state_dict(plain.state_dict())
    assert_same_bits(meant(X), plain(X))


WRONG: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    "tensor": (lambda t: t, TypeError, "the mechanism Says must return a headwise.nn.Step, got Te"),
    "nothing": (lambda _: None, TypeError, "got NoneType"),
    "tuple": (lambda t: (t, None), TypeError, "got tuple\n  hint: return Step(output, None)"),
    "no tensor": (lambda _: Step(None, None), TypeError, "got a Step without a tensor"),  # type: ignore[arg-type]
    "tokens first": (
        lambda t: Step(t[:, :2].transpose(1, 2), None),
        hw.ShapeError,
        "the output of the mechanism Says must be (2, 4, 4, 4)",
    ),
    "one sample": (lambda t: Step(t[:1], None), hw.ShapeError, "heads before tokens"),
    "combined": (lambda t: Step(t.transpose(1, 2).flatten(2), None), hw.ShapeError, "(2, 4, 16)"),
    "dtype": (lambda t: Step(t.double(), None), hw.DtypeError, ".to(call.query.dtype)"),
}


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(("answer", "kind", "text"), WRONG.values(), ids=WRONG)
def test_what_it_returns_is_looked_at(
    answer: Callable[[Tensor], Any], kind: type[Exception], text: str
) -> None:
    layer, cache = hw.MultiHeadAttention(16, 4, mechanism=Says(answer)), hw.KVCache()
    with pytest.raises(kind) as caught:
        layer(X)
    assert str(caught.value).startswith("MultiHeadAttention: ")
    assert text in str(caught.value)
    with pytest.raises(kind):
        layer(X, cache=cache)
    assert cache.length() == 0


def test_under_autocast_it_may_return_what_was_computed() -> None:
    layer = hw.MultiHeadAttention(16, 4, mechanism=Says(lambda t: Step(t.float(), None)))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(X).dtype == torch.bfloat16


def test_a_call_gives_what_attend_takes() -> None:
    q = torch.randn(2, 4, 5, 4)
    call = AttentionCall(
        q, q, q, hw.Causal(), None, torch.randn(5, 5), 2.0, torch.randn(4), 0.0, 3, 1
    )
    assert list(call.keywords()) == [
        "bias",
        "softcap",
        "sinks",
        "dropout_p",
        "q_offset",
        "kv_offset",
    ]
    assert all(value is getattr(call, name) for name, value in call.keywords().items())
    hw.attend(q, q, q, call.allowed, **call.keywords())

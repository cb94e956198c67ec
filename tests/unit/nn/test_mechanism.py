"""Another mechanism in the layer: what it is asked, and what is refused."""

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.nn import AttentionCall, Cost, Mechanism, Step
from tests.support.budget import assert_same_bits, largest_error


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
    """A mechanism that is no module, and carries a state."""

    def forward(self, call: AttentionCall, state: object = None) -> Step:
        return Step(call.value, (state or 0))

    def state(self, call: AttentionCall) -> object:
        return 0

    def cost(self, q_len: int, kv_len: int, **sizes: int) -> Cost:
        return Cost(0, 0, "O(q_len)")

    def reference(self, call: AttentionCall) -> Tensor:
        return call.value


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


def test_a_state_and_a_cache_are_refused() -> None:
    layer = hw.MultiHeadAttention(24, 4, mechanism=Running())
    assert layer(torch.randn(1, 3, 24)).shape == (1, 3, 24)
    cache = hw.KVCache()
    with pytest.raises(hw.CacheError, match=r"this mechanism carries a state: <.*Running"):
        layer(torch.randn(1, 3, 24), cache=cache)
    assert cache.length() == 0


@pytest.mark.parametrize(
    ("mechanism", "text"),
    [
        ("performer", r"got the name 'performer'\n  hint: .*headwise\.nn\.RandomFeatures"),
        ("linear", r"headwise\.nn\.LinearAttention"),
        ("Linformer", r"headwise\.nn\.LowRank"),
        ("magic", r"pass an object that follows headwise\.nn\.Mechanism"),
        (lambda call: call, "it has no forward, state, cost, reference"),
        (nn.Identity(), "it has no state, cost, reference"),
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

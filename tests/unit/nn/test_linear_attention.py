"""Linear attention as a mechanism: what a layer may ask of it, what it costs, what it shows."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.nn import AttentionCall, ChosenForm, LinearAttention, Mechanism, RandomFeatures
from tests.support.budget import assert_same_bits
from tests.support.linear import assert_near

X = torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def layer_with(mechanism: Any = None, **given: Any) -> hw.MultiHeadAttention:
    mechanism = LinearAttention("elu") if mechanism is None else mechanism
    return hw.MultiHeadAttention(12, 4, num_kv_heads=2, mechanism=mechanism, **given).double()


def test_it_is_a_mechanism_and_its_map_a_part_of_the_layer() -> None:
    made = LinearAttention(nn.Linear(3, 5), decay=nn.Parameter(torch.full((2,), 0.9)))
    assert isinstance(made, Mechanism)
    layer = layer_with(made, pattern=hw.Causal())
    names = {name for name in layer.state_dict() if name.startswith("mechanism")}
    assert names == {
        "mechanism.decay",
        "mechanism.feature_map.weight",
        "mechanism.feature_map.bias",
    }
    layer(X).sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())
    assert (
        "mechanism.decay"
        in layer_with(LinearAttention("elu", decay=torch.tensor([0.5, 0.9]))).state_dict()
    )


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "bias": (
        {},
        {"bias": torch.zeros(6, 6, dtype=torch.float64)},
        NotImplementedError,
        "LinearAttention: there are no scores of pairs, so bias cannot be applied, and the layer "
        "asks for it\n  hint: leave the bias out; ",
    ),
    "alibi": ({"positions": hw.positions.Alibi(4)}, {}, NotImplementedError, "so bias cannot be"),
    "softcap": ({"softcap": 3.0}, {}, NotImplementedError, "so softcap cannot be applied"),
    "sinks": ({"sinks": True}, {}, NotImplementedError, "so sinks cannot be applied"),
    "dropout": (
        {"dropout": 0.1},
        {},
        NotImplementedError,
        "hint: make the layer with dropout=0.0; nn.Dropout behind the layer drops outputs; "
        "softmax attention, mechanism=None, has it",
    ),
    "window": (
        {"pattern": hw.Window(2, 0)},
        {},
        hw.PatternError,
        "LinearAttention: the pattern must be none or Causal(), got Window(left=2, right=0, "
        "dilation=1)\n  hint: a state holds all tokens or none; give padding as kv_mask=, and "
        "windows, documents and masks to softmax attention, mechanism=None",
    ),
    "offset": (
        {"pattern": hw.Causal()},
        {"key": X[:, :4], "q_offset": 0},
        hw.PatternError,
        "LinearAttention: the last query must stand beside the last key, so that the first query "
        "is -2 behind the first key, got 0\n  hint: leave q_offset out",
    ),
    "short mask": (
        {},
        {"kv_mask": torch.ones(2, 4, dtype=torch.bool)},
        hw.PatternError,
        "kv_mask must be (batch, kv_len), (2, 6) here, got (2, 4)",
    ),
    "decay": (
        {"mechanism": LinearAttention("elu", decay=0.5)},
        {},
        ValueError,
        "LinearAttention: decay is for layers that hide later tokens, and this call has no "
        "pattern\n  hint: make the layer with pattern=Causal(), or leave decay out",
    ),
}


@pytest.mark.parametrize(("made", "asked", "kind", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(made: Any, asked: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        layer_with(**made)(X, **asked)
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["alibi", "softcap", "sinks", "dropout", "window"])
def test_what_every_call_would_refuse_is_refused_when_a_layer_is_made(name: str) -> None:
    made, _, kind, text = REFUSED[name]
    for mechanism in (LinearAttention("elu"), RandomFeatures(8)):
        with pytest.raises(kind) as caught:
            layer_with(mechanism, **made)
        assert text in str(caught.value)


@pytest.mark.usefixtures("plain_calls")
def test_what_makes_no_mechanism_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="identity"):
        LinearAttention("identity")
    with pytest.raises(ValueError, match=r"^LinearAttention: feature_map"):
        LinearAttention("cosine")
    with pytest.raises(ValueError, match=r"^LinearAttention: decay must lie above 0"):
        LinearAttention("elu", decay=2.0)
    with pytest.raises(ValueError, match=r"^LinearAttention: decay must lie above 0.*got 2\.0"):
        LinearAttention("elu", decay=torch.tensor(2.0))
    with pytest.raises(hw.DtypeError, match="decay must be floating-point"):
        LinearAttention("elu", decay=torch.tensor([1]))
    with pytest.raises(TypeError, match="normalize must be True or False, got 1"):
        LinearAttention("elu", normalize=1)  # type: ignore[arg-type]
    with pytest.raises(hw.ShapeError, match="each of the layer's 2 key/value heads"):
        layer_with(LinearAttention("elu", decay=torch.full((4,), 0.5)))


@pytest.mark.parametrize(
    "pattern", [None, hw.Full(), hw.Causal(), hw.Full() & hw.Causal()], ids=str
)
@pytest.mark.parametrize("q_offset", [None, 7, torch.tensor([3, 5])], ids=str)
def test_patterns_and_positions_that_it_takes(pattern: Any, q_offset: Any) -> None:
    layer = layer_with(pattern=pattern, positions=hw.positions.Rotary(3 + 1), head_dim=4)
    exact = hw.linear_attend(
        *layer.project(X, q_offset=0 if q_offset is None else q_offset),
        feature_map="elu",
        causal=pattern not in (None, hw.Full()),
        backend="reference",
    ).output
    assert_near(layer(X, q_offset=q_offset), layer.W_o(layer.combine_heads(exact)))


def test_cross_attention_sees_all_and_its_own_padding() -> None:
    layer, memory = layer_with(), torch.randn(2, 4, 12, dtype=torch.float64)
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    found = layer(X, memory, kv_mask=real)
    assert_near(found[1], layer(X[1], memory[1, :2]))


def test_weights_of_chosen_rows() -> None:
    mechanism = LinearAttention("elu", decay=0.8)
    layer = layer_with(mechanism, pattern=hw.Causal())
    query, key, value = layer.project(X)
    call = AttentionCall(query, key, value, hw.Causal(), torch.rand(2, 6) > 0.3)
    weights = mechanism.weights(call, rows=[5, 2])
    assert weights.shape == (2, 4, 2, 6)
    assert_near(weights @ value.repeat_interleave(2, 1), mechanism.reference(call)[:, :, [5, 2]])
    seen = call.kv_mask is not None and call.kv_mask[:, :6].any(-1)
    assert_near(weights[:, :, 0].sum(-1), torch.as_tensor(seen).double()[:, None].expand(2, 4))


def test_it_says_what_it_takes() -> None:
    sizes = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "value_dim": 16}
    costs = LinearAttention(nn.Linear(8, 32)).costs(1024, 1024, **sizes)
    assert set(costs) == {"whole", "native", "chunked", "recurrent", "reference"}
    maps, passes = 6 * 1024 * 2 * 8 * 32, 2 * 6 * 1024 * 32 * 17
    assert costs["whole"].flops == costs["recurrent"].flops == maps + passes
    assert costs["native"].flops == maps + passes + 2 * 4 * 1024 * 64 * (32 + 17)
    assert costs["chunked"].flops == maps + passes + 2 * 4 * 1024 * 128 * (32 + 17)
    assert costs["reference"].flops == maps + 2 * 4 * 1024 * 1024 * (32 + 17)
    assert costs["recurrent"].bytes > costs["chunked"].bytes > costs["native"].bytes
    mechanism = LinearAttention("elu")
    long, longer = (mechanism.cost(n, n, **sizes) for n in (2**14, 2**15))
    assert longer.flops == 2 * long.flops
    assert long.bytes < longer.bytes < 2 * long.bytes
    plan = layer_with(mechanism, pattern=hw.Causal()).float().explain(X.float())
    assert plan.attention == mechanism.cost(6, 6, q_heads=4, kv_heads=2, head_dim=3, value_dim=3)
    assert plan.forms["recurrent"].flops < plan.forms["native"].flops
    assert "\n  native    O(" in str(plan)
    assert str(plan).startswith("mechanism   O((q_len + kv_len) · features · value_dim); ")


@pytest.mark.parametrize("pattern", [None, hw.Full(), hw.Causal()], ids=str)
@pytest.mark.parametrize("made", [lambda: LinearAttention("elu"), lambda: RandomFeatures(8)])
@pytest.mark.parametrize("asked", [{}, {"pattern": hw.Causal()}], ids=["layer", "call"])
def test_a_plan_is_of_the_form_that_runs(pattern: Any, made: Any, asked: Any) -> None:
    layer = layer_with(made(), pattern=pattern)
    causal = bool(asked) or type(pattern) is hw.Causal
    plan = layer.explain(X, **asked)
    assert plan.form is not None
    assert plan.form.name == "chunked"
    assert plan.attention == plan.forms["chunked" if causal else "whole"]
    assert "\nform        chunked\nnot native  it computes float32" in str(plan)
    plan = layer.float().explain(X.float(), **asked)
    assert plan.form == ChosenForm("native", "native" if causal else "whole", {})
    assert "\nform        native\n" in str(plan)
    step = layer.double().explain(X[:, :1], **asked).form
    assert step is not None
    assert step.name == "recurrent"


def test_a_step_costs_what_is_new() -> None:
    layer, cache = layer_with(pattern=hw.Causal()), hw.KVCache()
    with torch.no_grad():
        layer(X, cache=cache)
    assert layer.explain(X[:, :1], cache=cache).forms == layer.explain(X[:, :1]).forms


def test_a_question_changes_nothing() -> None:
    counted = nn.Sequential(nn.LazyLinear(5), nn.Softplus())
    inside = RandomFeatures(8)
    for made in (inside, LinearAttention(inside), LinearAttention(counted)):
        made.cost(3, 3, q_heads=1, kv_heads=1, head_dim=4, value_dim=4)
    assert inside.head_dim is None
    assert isinstance(counted[0], nn.LazyLinear)


CONVERSIONS = [nn.Module.bfloat16, nn.Module.half, nn.Module.float]


@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize("learned", [True, False])
def test_no_conversion_rounds_a_decay(conversion: Any, learned: bool) -> None:
    rates = torch.tensor([0.9995, 0.5])
    made = LinearAttention("elu", decay=nn.Parameter(rates.clone()) if learned else rates.clone())
    layer = conversion(layer_with(made))
    assert isinstance(made.decay, Tensor)
    assert isinstance(made.decay, nn.Parameter) is learned
    assert_same_bits(made.decay.detach(), rates)
    layer(X.to(layer.W_q.weight.dtype), pattern=hw.Causal())
    wide = made.double().decay
    assert isinstance(wide, Tensor)
    assert wide.dtype == torch.float64
    narrow = {name: each.bfloat16() for name, each in made.state_dict().items()}
    made.load_state_dict(narrow, assign=True)
    assert made.decay.dtype == torch.float32


def test_what_it_shows() -> None:
    assert repr(LinearAttention("elu")) == "LinearAttention('elu')"
    assert repr(LinearAttention("identity", normalize=False, decay=torch.ones(2))) == (
        "LinearAttention('identity', decay=(2,), normalize=False)"
    )
    assert "(feature_map): Linear" in repr(LinearAttention(nn.Linear(3, 4)))

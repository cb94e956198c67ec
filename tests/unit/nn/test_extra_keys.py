"""ExtraKeys: torch's extra keys behind those of a call, by their definition and fast."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.nn import AttentionCall, Mechanism
from headwise.nn.extra_keys import ExtraKeys
from headwise.nn.from_torch import from_torch
from headwise.positions import Alibi, RelativeBias
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.oracle import Extras, attention
from tests.support.shapes import Sizes, inputs

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
EXTRA = {"add_bias_kv": True, "add_zero_attn": True}


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("settings", [{}, {"softcap": 1.5}, {"sinks": True}], ids=str)
def test_extra_keys_are_keys_behind_the_others(
    learned: bool, zero: bool, settings: dict[str, Any]
) -> None:
    """Grouped heads, a causal pattern, padding and a bias: against the formula with more keys."""
    sizes = Sizes(2, 2, 2, 5, 7, 6, 4)
    given = inputs(sizes)
    bias = torch.randn(2, 4, 5, 7)
    real = torch.arange(7) < torch.tensor([[7], [0]])
    extra = ExtraKeys(2, 6, 4, learned=learned, zero=zero)
    sinks = torch.randn(4) if settings.get("sinks") else None
    call = AttentionCall(
        *given, hw.Causal(), real, bias, softcap=settings.get("softcap"), sinks=sinks
    )
    key, value, count = given.key, given.value, int(learned) + int(zero)
    if extra.bias_k is not None and extra.bias_v is not None:
        key = torch.cat([key, extra.bias_k[:, None].expand(2, 2, 1, 6)], 2)
        value = torch.cat([value, extra.bias_v[:, None].expand(2, 2, 1, 4)], 2)
    if zero:
        key, value = (nn.functional.pad(t, (0, 0, 0, 1)) for t in (key, value))
    visible = call.allowed.dense(5, 7) if call.allowed is not None else torch.ones(5, 7).bool()
    visible = nn.functional.pad(visible, (0, count), value=True)
    rest: dict[str, Any] = {
        "bias": nn.functional.pad(bias, (0, count)),
        "extras": Extras(softcap=call.softcap, sinks=sinks),
    }
    exact = attention(given.query, key, value, visible, **rest)
    plain = attention(given.query, key, value, visible, **rest, dtype=torch.float32)
    for found in (extra(call).output, extra.reference(call)):
        assert found.dtype == given.query.dtype
        assert_within_budget(found, exact=exact.output, plain=plain.output, label="extra keys")


def test_extra_keys_follow_the_protocol() -> None:
    extra = ExtraKeys(2, 4, zero=True)
    assert isinstance(extra, Mechanism)
    stateless: Mechanism = extra
    assert stateless.state(AttentionCall(*inputs(Sizes(1, 2, 1, 3, 5, 4, 4)))) is None
    cost = extra.cost(3, 5, q_heads=2, kv_heads=2, head_dim=4, value_dim=4)
    assert cost.flops == 2 * 2 * 3 * 7 * 8
    assert cost.bytes == (2 * 3 + 2 * 7) * 8 * 4
    assert repr(extra) == "ExtraKeys(learned=True, zero=True)"


OFFSETS: dict[str, dict[str, Any]] = {
    "default": {},
    "numbers": {"q_offset": 4, "kv_offset": 1},
    "tensors": {"q_offset": torch.tensor([4, 0]), "kv_offset": torch.tensor([0, 2])},
}


@pytest.mark.parametrize("offsets", OFFSETS.values(), ids=OFFSETS)
@pytest.mark.parametrize("kind", [Alibi, RelativeBias])
@pytest.mark.parametrize("pattern", [None, hw.Causal()], ids=str)
def test_biases_by_distance_say_nothing_of_extra_keys(
    kind: type[Alibi | RelativeBias], offsets: dict[str, Any], pattern: hw.patterns.Pattern | None
) -> None:
    query, key, value = (t.double() for t in inputs(Sizes(2, 2, 2, 5, 7, 6, 4)))
    bias = kind(4).double()
    for parameter in bias.parameters():
        nn.init.normal_(parameter)
    extra = ExtraKeys(2, 6, 4, zero=True).double()
    call = AttentionCall(query, key, value, pattern, bias=bias, **offsets)
    torch.testing.assert_close(extra(call).output, extra.reference(call))


@pytest.mark.parametrize("shape", [(), (7,), (5, 1), (2, 1, 1, 7), (1, 4, 5, 7)], ids=str)
def test_biases_of_every_shape(shape: tuple[int, ...]) -> None:
    extra = ExtraKeys(2, 6, 4, zero=True)
    call = AttentionCall(*inputs(Sizes(2, 2, 2, 5, 7, 6, 4)), bias=torch.randn(shape))
    torch.testing.assert_close(extra(call).output, extra.reference(call))


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("zero", [True, False])
def test_where_all_weights_are_dropped_nothing_is_left(learned: bool, zero: bool) -> None:
    extra = ExtraKeys(2, 6, 4, learned=learned, zero=zero)
    call = AttentionCall(*inputs(Sizes(2, 2, 2, 5, 7, 6, 4)), dropout_p=1.0)
    assert (extra(call).output == 0).all()
    assert (extra.reference(call) == 0).all()


def test_dropout_of_extra_keys_follows_the_generator() -> None:
    ours = from_torch(nn.MultiheadAttention(8, 2, dropout=0.5, **EXTRA))

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        found: Tensor = ours(X).detach()
        return found

    assert_same_bits(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))
    with torch.no_grad():
        draws = torch.stack([ours(X) for _ in range(400)])
        error = (draws.mean(0) - ours.eval()(X)).abs()
    assert bool((error < 6 * draws.std(0) / 400**0.5 + 1e-6).all())

"""from_torch and the extra keys of torch's layer: what is kept, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.nn.quantizable import MultiheadAttention as Quantizable
from torch.nn.utils import parametrizations

import headwise as hw
from headwise.nn import AttentionCall, Mechanism
from headwise.nn.extra_keys import ExtraKeys
from headwise.nn.from_torch import from_torch
from headwise.nn.torch_attention import TorchMultiheadAttention
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.oracle import Extras, attention
from tests.support.shapes import Sizes, inputs

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
EXTRA = {"add_bias_kv": True, "add_zero_attn": True}


def test_what_is_kept() -> None:
    theirs = nn.MultiheadAttention(8, 2, dropout=0.25, dtype=torch.float64, **EXTRA).eval()
    theirs.in_proj_weight.requires_grad_(False)
    before = torch.get_rng_state()
    ours = from_torch(theirs)
    assert torch.equal(torch.get_rng_state(), before)
    assert (ours.training, ours.dropout, ours.W_q.weight.dtype) == (False, 0.25, torch.float64)
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    assert frozen == {"W_q.weight", "W_k.weight", "W_v.weight"}
    with torch.no_grad():
        theirs.in_proj_weight.zero_()
    assert ours.W_q.weight.any()
    assert from_torch(theirs.to("meta")).W_o.weight.is_meta


def test_a_layer_without_extra_keys_is_a_plain_one() -> None:
    ours = from_torch(nn.MultiheadAttention(8, 2, bias=False))
    plain = hw.MultiHeadAttention(8, 2, bias=False)
    assert list(ours.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(ours.state_dict())
    assert_same_bits(plain(X), ours(X))


def test_ours_behind_torchs_interface_converts_too() -> None:
    theirs = TorchMultiheadAttention(8, 2, batch_first=True, **EXTRA)
    torch.testing.assert_close(from_torch(theirs)(X), theirs(X, X, X)[0])


def test_extra_keys_stay_visible_with_a_cache() -> None:
    ours = from_torch(nn.MultiheadAttention(8, 2, **EXTRA))
    ours.pattern = hw.Causal()
    whole, cache = ours(X), hw.KVCache()
    with torch.no_grad():
        steps = [ours(X[:, n : n + 1], cache=cache) for n in range(5)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)


class Strange(nn.MultiheadAttention):
    def forward(self, *_: Any, **__: Any) -> Any:
        return None


def _with(change: Callable[[nn.MultiheadAttention], object]) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(8, 2, add_bias_kv=True)
    change(theirs)
    return theirs


def _half_extra(theirs: nn.MultiheadAttention) -> None:
    theirs.bias_v = None


def _adapted(theirs: nn.MultiheadAttention) -> None:
    theirs.out_proj = nn.Sequential(nn.Linear(8, 8))  # type: ignore[assignment]


class Odd(nn.Parameter):
    """A kind of parameter of another library."""


REFUSED: dict[str, tuple[Callable[[], nn.MultiheadAttention], str]] = {
    "subclass": (lambda: Strange(8, 2), "Strange has a forward of its own"),
    "quantisable": (lambda: Quantizable(8, 2), "MultiheadAttention has a forward of its own"),
    "hook": (
        lambda: _with(lambda m: m.register_forward_hook(lambda *_: None)),
        "the module has hooks, which would be lost",
    ),
    "hook on output": (
        lambda: _with(lambda m: m.out_proj.register_full_backward_hook(lambda *_: None)),
        "its out_proj has hooks",
    ),
    "parametrised": (
        lambda: _with(lambda m: parametrizations.weight_norm(m, "in_proj_weight")),
        "the module has parametrisations",
    ),
    "parametrised output": (
        lambda: _with(lambda m: parametrizations.orthogonal(m.out_proj)),
        "its out_proj has parametrisations",
    ),
    "adapter": (lambda: _with(_adapted), "out_proj must be an nn.Linear, got Sequential"),
    "parameter": (
        lambda: _with(lambda m: setattr(m.out_proj, "bias", Odd(torch.zeros(8)))),
        "out_proj.bias must be a plain parameter, got Odd",
    ),
    "half": (lambda: _with(_half_extra), "bias_k and bias_v must both be given"),
}


@pytest.mark.parametrize(("make", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(make: Callable[[], nn.MultiheadAttention], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        from_torch(make())
    assert str(caught.value).startswith("MultiHeadAttention.from_torch: ")
    assert text in str(caught.value)


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

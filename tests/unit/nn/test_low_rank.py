"""LowRank in a layer: every projection and way of sharing, padding, sizes, graphs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.nn import AttentionCall, LowRank, Mechanism
from tests.support.budget import assert_same_bits, assert_within_budget, largest_error

KINDS: dict[str, dict[str, str]] = {
    **{share: {"share": share} for share in ("none", "kv", "heads", "all")},
    **{
        f"conv {share}": {"projection": "conv", "share": share}
        for share in ("none", "kv", "heads", "all")
    },
    "mean": {"projection": "mean"},
}
on_kinds = pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
LENGTHS = (1, 3, 4, 13, 24)
REAL = torch.arange(13) < torch.tensor([[13], [6], [0]])


def made(settings: dict[str, str], **others: Any) -> hw.MultiHeadAttention:
    torch.manual_seed(1)
    mechanism = LowRank(6, 24, **settings)  # type: ignore[arg-type]
    return hw.MultiHeadAttention(
        20, 4, num_kv_heads=2, value_dim=7, mechanism=mechanism, **others
    ).eval()


def mechanism_of(layer: hw.MultiHeadAttention) -> LowRank:
    assert isinstance(layer.mechanism, LowRank)
    return layer.mechanism


def asked(layer: hw.MultiHeadAttention, length: int, **others: Any) -> AttentionCall:
    x = torch.randn(3, length, 20, dtype=layer.W_q.weight.dtype)
    return AttentionCall(*layer.project(x), **others)


@on_kinds
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("padded", [True, False])
def test_it_computes_what_its_matrices_say(
    settings: dict[str, str], length: int, padded: bool
) -> None:
    layer = made(settings)
    call = asked(layer, length, kv_mask=REAL[:, :length] if padded and length < 14 else None)
    mechanism = mechanism_of(layer)
    found, plain = mechanism(call).output, mechanism.reference(call)
    query, key, value = (t.double() for t in call[:3])
    wide = AttentionCall(query, key, value, kv_mask=call.kv_mask)
    exact = mechanism.double().reference(wide)
    assert_within_budget(found, exact=exact, plain=plain, label=str(settings))
    assert largest_error(mechanism(wide).output, exact) < 1e-12


@on_kinds
def test_gradients_are_those_of_the_definition(settings: dict[str, str]) -> None:
    layer = made(settings).double()
    mechanism, call = mechanism_of(layer), asked(layer, 13, kv_mask=REAL)
    found = []
    for output in (mechanism(call).output, mechanism.reference(call)):
        layer.zero_grad()
        output.square().sum().backward(retain_graph=True)
        found.append([parameter.grad for parameter in mechanism.parameters()])
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert other is not None
        assert largest_error(one, other) < 1e-10


@on_kinds
def test_padding_at_the_end_is_no_padding(settings: dict[str, str]) -> None:
    layer = made(settings).double()
    x = torch.randn(3, 13, 20, dtype=torch.float64)
    found = layer(x.masked_fill(~REAL.unsqueeze(-1), float("nan")), kv_mask=REAL)
    assert largest_error(found[0], layer(x[0])) < 1e-12
    assert largest_error(found[1, :6], layer(x[1, :6])) < 1e-12
    context = mechanism_of(layer)(AttentionCall(*layer.project(x), kv_mask=REAL)).output
    assert bool((context[2] == 0).all())


@on_kinds
def test_what_stands_at_padding_in_front_changes_nothing(settings: dict[str, str]) -> None:
    layer, real = made(settings), REAL[:2].flip(1)
    x = torch.randn(2, 13, 20)
    wanted = layer(x, kv_mask=real)
    found = layer(x.masked_fill(~real.unsqueeze(-1), float("inf")), kv_mask=real)
    assert_same_bits(found[real], wanted[real])


@on_kinds
def test_weights_of_tokens(settings: dict[str, str]) -> None:
    layer = made(settings).double()
    mechanism, call = mechanism_of(layer), asked(layer, 13, kv_mask=REAL)
    weights = mechanism.weights(call)
    assert weights.shape == (3, 4, 13, 13)
    mixed = weights @ call.value.repeat_interleave(2, 1)
    assert largest_error(mixed, mechanism(call).output) < 1e-12
    assert bool((weights.transpose(1, 3)[~REAL] == 0).all())
    some = mechanism.weights(call, rows=[0, 12], heads=[3, 1])
    assert largest_error(some, weights[:, [3, 1]][:, :, [0, 12]]) < 1e-14
    if settings.get("projection") == "mean":
        torch.testing.assert_close(weights[:2].sum(-1), torch.ones(2, 4, 13, dtype=torch.float64))


@on_kinds
def test_it_keeps_its_numbers_in_the_layers_state(settings: dict[str, str]) -> None:
    one, two = made(settings), made(settings)
    mechanism_of(two).reset_parameters()
    two.load_state_dict(one.state_dict())
    x = torch.randn(2, 13, 20)
    assert_same_bits(two(x), one(x))
    shapes = {name: tuple(p.shape) for name, p in mechanism_of(one).named_parameters()}
    size = (6, 24) if settings.get("projection", "linear") == "linear" else (4,)
    share = settings.get("share", "none")
    lead = (2,) if share in ("none", "kv") else ()
    both = ["key_projection", "value_projection"][: 1 if share in ("kv", "all") else 2]
    learned = [] if settings.get("projection") == "mean" else both
    assert shapes == {f"{name}.weight": (*lead, *size) for name in learned}


def test_softcap_sinks_and_dropout_are_about_projected_tokens() -> None:
    layer = made({}, softcap=0.5, sinks=True, dropout=1.0)
    mechanism = mechanism_of(layer)
    assert layer.sinks is not None
    nn.init.normal_(layer.sinks)
    call = asked(layer, 13, softcap=0.5, sinks=layer.sinks, kv_mask=REAL)
    found, spelled = mechanism(call).output, mechanism.reference(call)
    torch.testing.assert_close(found, spelled)
    assert not torch.allclose(found, mechanism(call._replace(softcap=None)).output)
    assert not torch.allclose(found, mechanism(call._replace(sinks=None)).output)
    assert bool((mechanism(call._replace(dropout_p=1.0)).output == 0).all())
    x = torch.randn(2, 13, 20)
    assert_same_bits(layer.train()(x), layer.W_o.bias.expand(2, 13, 20))


def test_cross_attention_reads_a_memory_of_its_own_length() -> None:
    layer = made({})
    x, memory = torch.randn(3, 40, 20), torch.randn(3, 13, 20)
    real = REAL.clone()
    found = layer(x, memory, kv_mask=real)
    assert found.shape == (3, 40, 20)
    assert largest_error(found[1], layer(x[1], memory[1, :6])) < 1e-5


def test_one_object_is_shared_by_layers() -> None:
    shared = LowRank(6, 24, num_kv_heads=2)
    layers = nn.ModuleList(hw.MultiHeadAttention(20, 2, mechanism=shared) for _ in range(3))
    assert sum("projection" in name for name, _ in layers.named_parameters()) == 2
    x: Tensor = torch.randn(2, 13, 20)
    for layer in layers:
        x = layer(x)
    torch.autograd.backward(x.sum())
    assert all(parameter.grad is not None for parameter in shared.parameters())


def test_a_layer_tells_how_many_heads_there_are() -> None:
    for share in ("none", "kv"):
        mechanism = LowRank(6, 24, share, dtype=torch.bfloat16)
        assert not list(mechanism.parameters())
        mechanism.fit(q_heads=4, kv_heads=2, head_dim=5, value_dim=7)
        kept = next(mechanism.parameters())
        assert (kept.shape, kept.dtype) == ((2, 6, 24), torch.bfloat16)
        mechanism.fit(kv_heads=2)
        assert next(mechanism.parameters()) is kept
    shared = LowRank(6, 24, "heads")
    shared.fit(kv_heads=2)
    shared.fit(kv_heads=3)
    assert shared.num_kv_heads is None


def test_a_layer_that_is_made_with_it_does_so() -> None:
    mechanism = LowRank(6, 24)
    layer = hw.MultiHeadAttention(20, 4, num_kv_heads=2, mechanism=mechanism)
    names = dict(layer.named_parameters())
    assert names["mechanism.key_projection.weight"].shape == (2, 6, 24)
    assert names["mechanism.value_projection.weight"].shape == (2, 6, 24)
    with pytest.raises(hw.ShapeError, match="num_kv_heads must be that of the layer, got 2 and 4"):
        hw.MultiHeadAttention(20, 4, mechanism=mechanism)


def test_new_projections_keep_the_size_of_tokens() -> None:
    torch.manual_seed(0)
    tokens = torch.randn(1, 3, 2048, 16)
    for kind in ("linear", "conv"):
        mechanism = LowRank(256, 2048, projection=kind, num_kv_heads=3)
        assert mechanism.key_projection is not None
        spread = mechanism.key_projection(tokens, None).std().item()
        assert spread == pytest.approx(1.0, abs=0.5)


@pytest.mark.parametrize("kind", ["mean", "conv", "linear"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_rounded_behind_the_sum(kind: str, dtype: torch.dtype) -> None:
    """1024 numbers of 70 sum to more than float16 has, and 257 is not in bfloat16."""
    for windows, length, number in ((4, 4096, 70.0), (1, 257, 3.0)):
        mechanism = LowRank(windows, length, projection=kind, num_kv_heads=1)
        module = mechanism.key_projection
        assert module is not None
        for weight in module.parameters():
            nn.init.constant_(weight, windows / length)
        module = module.to(dtype)
        tokens = torch.full((1, 1, length, 2), number, dtype=dtype)
        found = module(tokens, None)
        exact = module.matrix(length, None).double() @ tokens.double()
        assert_same_bits(found, exact.to(dtype))


@pytest.mark.parametrize("kind", ["mean", "conv", "linear"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_as_near_as_it_can_be(kind: str, dtype: torch.dtype) -> None:
    module = LowRank(4, 256, projection=kind, num_kv_heads=2).to(dtype).key_projection
    assert module is not None
    tokens = torch.randn(2, 2, 250, 3).to(dtype)
    exact = module.matrix(250, None).double() @ tokens.double()
    error = (module(tokens, None).double() - exact).abs()
    assert bool((error <= exact.abs() * torch.finfo(dtype).eps * 0.51 + 1e-6).all())


def test_cost() -> None:
    layer = made({})
    assert isinstance(layer.mechanism, Mechanism)
    sizes = {"q_heads": 4, "kv_heads": 2, "head_dim": 5, "value_dim": 7}
    cost = mechanism_of(layer).cost(3, 13, **sizes)
    assert cost.flops == 12 * (2 * 2 * 6 * 13 + 2 * 4 * 3 * 6)
    assert cost.bytes == 4 * (12 * (4 * 3 + 2 * (13 + 2 * 6)) + 2 * 2 * 6 * 13)
    assert cost.formula == "O((q_len + kv_len) · rank)"
    conv = mechanism_of(made({"projection": "conv", "share": "all"})).double().cost(3, 13, **sizes)
    assert conv.flops == 12 * (2 * 2 * 13 + 2 * 4 * 3 * 4)
    assert conv.bytes == 8 * (12 * (4 * 3 + 2 * (13 + 2 * 4)) + 4)
    assert conv.formula == "O(q_len · rank + kv_len)"
    assert mechanism_of(made({"projection": "mean"})).cost(3, 13, **sizes).flops < conv.flops
    assert str(layer.explain(torch.randn(2, 13, 20))).startswith(f"mechanism   {cost.formula}; ")
    assert repr(LowRank(6, 24, "kv")).startswith(
        "LowRank(6, 24, share='kv', projection='linear', num_kv_heads=None"
    )


@pytest.mark.parametrize("settings", [KINDS["none"], KINDS["conv all"], KINDS["mean"]], ids=str)
def test_under_autocast(settings: dict[str, str]) -> None:
    layer = made(settings)
    x = torch.randn(3, 13, 20)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x, kv_mask=REAL)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), layer(x, kv_mask=REAL), atol=0.05, rtol=0.0)

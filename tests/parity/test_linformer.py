"""LowRank against the layer of the package ``linformer``, from its own weights.

Their layer takes any keyword and reads none of them, so padding and causality given to it are lost
in silence; that is shown here, too.
"""

from typing import Any

import pytest
import torch
from linformer.linformer import LinformerSelfAttention  # type: ignore[import-untyped]
from torch import Tensor, nn

import headwise as hw
from tests.support.budget import assert_within_budget, largest_error

WIDTH, HEADS, LENGTH, RANK = 24, 4, 29, 7

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one key head": {"one_kv_head": True},
    "values are keys": {"share_kv": True},
    "both": {"one_kv_head": True, "share_kv": True},
    "wide heads": {"dim_head": 10},
}
on_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def theirs_with(options: dict[str, Any], dropout: float = 0.0) -> Any:
    return LinformerSelfAttention(WIDTH, LENGTH, k=RANK, heads=HEADS, dropout=dropout, **options)


def ours_from(theirs: Any) -> hw.MultiHeadAttention:
    """Return our layer with copies of their weights; their projections stand upright there."""
    shared = theirs.share_kv
    layer = hw.MultiHeadAttention(
        WIDTH,
        HEADS,
        num_kv_heads=theirs.to_k.out_features // theirs.dim_head,
        head_dim=theirs.dim_head,
        dropout=theirs.dropout.p,
        mechanism=hw.nn.LowRank(RANK, LENGTH, "all" if shared else "heads"),
    )
    weights = {
        "W_q.weight": theirs.to_q.weight,
        "W_k.weight": theirs.to_k.weight,
        "W_v.weight": (theirs.to_k if shared else theirs.to_v).weight,
        "W_o.weight": theirs.to_out.weight,
        "W_o.bias": theirs.to_out.bias,
        "mechanism.key_projection.weight": theirs.proj_k.T,
    }
    if not shared:
        weights["mechanism.value_projection.weight"] = theirs.proj_v.T
    kept = {name: torch.zeros_like(tensor) for name, tensor in layer.state_dict().items()}
    layer.load_state_dict(kept | weights)
    return layer


@on_options
@pytest.mark.parametrize("length", [LENGTH, 11, 1])
@pytest.mark.parametrize("cross", [True, False])
def test_their_layer_from_its_weights(options: dict[str, Any], length: int, cross: bool) -> None:
    theirs = theirs_with(options)
    ours = ours_from(theirs)
    x = torch.randn(3, 17 if cross else length, WIDTH)
    memory = torch.randn(3, length, WIDTH) if cross else x
    with torch.no_grad():
        found = ours(x, memory if cross else None)
        plain = theirs(x, context=memory)
        exact = theirs.double()(x.double(), context=memory.double())
    assert_within_budget(found, exact=exact, plain=plain, label=str(options))


@on_options
def test_gradients_of_their_layer(options: dict[str, Any]) -> None:
    theirs = theirs_with(options).double()
    ours = ours_from(theirs).double()
    x = torch.randn(2, 13, WIDTH, dtype=torch.float64)
    d_output = torch.randn(2, 13, WIDTH, dtype=torch.float64)
    for layer in (theirs, ours):
        layer(x).backward(d_output)
    pairs = [(ours.W_q.weight, theirs.to_q.weight), (ours.W_o.weight, theirs.to_out.weight)]
    mechanism = ours.mechanism
    assert isinstance(mechanism, nn.Module)
    projections = {name.split("_")[0]: p for name, p in mechanism.named_parameters()}
    pairs.append((projections["key"], theirs.proj_k))
    if not theirs.share_kv:
        pairs += [(ours.W_v.weight, theirs.to_v.weight), (projections["value"], theirs.proj_v)]
        pairs.append((ours.W_k.weight, theirs.to_k.weight))
    for one, other in pairs:
        assert one.grad is not None
        wanted = other.grad.T if other.grad.shape != one.grad.shape else other.grad
        assert largest_error(one.grad, wanted) < 1e-12


def test_longer_inputs_are_refused_by_both() -> None:
    theirs = theirs_with({})
    x = torch.randn(1, LENGTH + 1, WIDTH)
    with pytest.raises(AssertionError, match="sequence length"):
        theirs(x)
    with pytest.raises(hw.ShapeError, match="may bring max_length="):
        ours_from(theirs)(x)


def changed_behind(x: Tensor, place: int) -> Tensor:
    return torch.cat([x[:, :place], torch.randn_like(x[:, place:])], 1)


def test_padding_reaches_their_real_tokens_and_not_ours() -> None:
    theirs = theirs_with({}).double()
    ours = ours_from(theirs).double()
    x = torch.randn(2, 13, WIDTH, dtype=torch.float64)
    other, real = changed_behind(x, 8), torch.arange(13).expand(2, 13) < 8
    with torch.no_grad():
        leaks = (theirs(x, mask=real) - theirs(other, mask=real))[:, :8].abs().max()
        kept = ours(x, kv_mask=real)[:, :8]
        assert leaks > 1e-3
        assert torch.equal(kept, ours(other, kv_mask=real)[:, :8])
        assert largest_error(kept, theirs(x[:, :8])) < 1e-12


def test_their_causal_use_sees_the_future_and_ours_is_refused() -> None:
    theirs = theirs_with({}).double()
    x = torch.randn(2, 13, WIDTH, dtype=torch.float64)
    other = changed_behind(x, 12)
    with torch.no_grad():
        seen = (theirs(x, causal=True) - theirs(other, causal=True))[:, :12].abs().max()
    assert seen > 1e-4
    with pytest.raises(hw.PatternError, match=r"LowRank(.|\n)*headwise\.nn\.LinearAttention"):
        ours_from(theirs).double()(x, pattern=hw.Causal())


@pytest.mark.slow
def test_their_dropout_drops_the_same_share() -> None:
    theirs = theirs_with({}, dropout=0.3)
    ours = ours_from(theirs)
    x = torch.randn(1, 13, WIDTH)
    with torch.no_grad():
        drawn = [torch.stack([layer(x) for _ in range(1500)]) for layer in (theirs, ours)]
    spread = drawn[0].std(0)
    assert bool(
        ((drawn[0].mean(0) - drawn[1].mean(0)).abs() < 6 * spread / 1500**0.5 * 2**0.5).all()
    )
    torch.testing.assert_close(drawn[1].std(0), spread, rtol=0.2, atol=0.0)

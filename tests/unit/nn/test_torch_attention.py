"""TorchMultiheadAttention: what it takes over, what it keeps, what it says differently."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from headwise.nn.torch_attention import TorchMultiheadAttention as Ours
from tests.support.budget import assert_same_bits

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
LOWER = torch.ones(5, 5, dtype=torch.bool).triu(1)


def made(**settings: Any) -> Ours:
    return Ours(8, 2, batch_first=True, **settings)


@pytest.mark.parametrize(
    "settings",
    [{}, {"bias": False}, {"kdim": 3, "vdim": 5}, {"add_bias_kv": True, "add_zero_attn": True}],
    ids=str,
)
def test_state_dicts_load_both_ways(settings: dict[str, Any]) -> None:
    theirs, ours = nn.MultiheadAttention(8, 2, batch_first=True, **settings), made(**settings)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    key, value = (torch.randn(2, 4, settings.get(name, 8)) for name in ("kdim", "vdim"))
    torch.testing.assert_close(ours(X, key, value), theirs(X, key, value))
    back = nn.MultiheadAttention(8, 2, batch_first=True, **settings)
    back.load_state_dict(ours.state_dict())
    torch.testing.assert_close(back(X, key, value), theirs(X, key, value))


def test_hooks_adapters_and_parametrised_outputs_run() -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    seen: list[str] = []
    theirs.register_forward_hook(lambda *_: seen.append("layer"))
    parametrizations.weight_norm(theirs.out_proj)
    wanted = theirs(X, X, X)
    ours = Ours.from_torch(theirs)
    ours.out_proj.register_forward_hook(lambda *_: seen.append("projection"))
    torch.testing.assert_close(ours(X, X, X), wanted)
    assert seen == ["layer", "projection", "layer"]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("spelling", ["bool", "-inf"])
def test_a_query_that_may_look_nowhere_gets_zeros(
    need_weights: bool, dropout: float, spelling: str
) -> None:
    ours = made(dropout=dropout)
    closed = torch.zeros(5, 5, dtype=torch.bool).index_fill(0, torch.tensor([1, 3]), True)
    mask = closed if spelling == "bool" else torch.zeros(5, 5).masked_fill(closed, float("-inf"))
    x = X.clone().requires_grad_()
    output, weights = ours(x, X, X, attn_mask=mask, need_weights=need_weights)
    assert_same_bits(output[:, 1].detach(), ours.out_proj.bias.detach().expand(2, 8))
    if weights is not None:
        assert (weights[:, [1, 3]] == 0).all()
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert (gradient[:, [1, 3]] == 0).all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_hidden_numbers_never_reach_the_result(need_weights: bool, dropout: float) -> None:
    ours = made(dropout=dropout)
    spoiled = X.clone()
    spoiled[1, 3:] = float("nan")
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    found = []
    for memory in (X, spoiled):
        torch.manual_seed(4)
        found.append(ours(X, memory, memory, padding, need_weights)[0])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("given", ["bool", "-inf"])
def test_a_hint_that_holds_changes_nothing_and_one_that_does_not_is_not_believed(
    given: str,
) -> None:
    ours = made().eval()
    for closed in (LOWER, LOWER.roll(1, 0), ~LOWER):
        mask = closed if given == "bool" else torch.zeros(5, 5).masked_fill(closed, float("-inf"))
        for rest in ({}, {"need_weights": False}):
            hinted = ours(X, X, X, attn_mask=mask, is_causal=True, **rest)
            torch.testing.assert_close(hinted, ours(X, X, X, attn_mask=mask, **rest))
    for length in (3, 7):
        cross, memory = torch.ones(5, length, dtype=torch.bool).triu(1), torch.randn(2, length, 8)
        for rest in ({}, {"need_weights": False}):
            torch.testing.assert_close(
                ours(X, memory, memory, attn_mask=cross, is_causal=True, **rest),
                ours(X, memory, memory, attn_mask=cross, **rest),
            )


def test_empty_sizes() -> None:
    ours = made()
    nothing = torch.zeros(2, 0, 8)
    assert ours(nothing, X, X)[0].shape == (2, 0, 8)
    assert ours(X[:0], X[:0], X[:0])[0].shape == (0, 5, 8)
    output, weights = ours(X, nothing, nothing)
    assert weights.shape == (2, 5, 0)
    torch.testing.assert_close(output, ours.out_proj.bias.expand(2, 5, 8))


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_second_derivatives_with_weights(average: bool, dropout: float) -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dropout=dropout).double()
    found = []
    for layer in (theirs, Ours.from_torch(copy.deepcopy(theirs))):
        x = X.double().requires_grad_()
        torch.manual_seed(2)
        output, weights = layer(x, x, x, average_attn_weights=average)
        loss = output.square().sum() + weights.square().sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [x, *layer.parameters()]))
    for usual, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, usual)


VALUES = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@pytest.mark.parametrize("spoil", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("hidden", VALUES.values(), ids=VALUES)
def test_odd_values_reach_those_who_see_them_alone(spoil: float, hidden: float) -> None:
    """With the weights and without: the same numbers at the same places, also for faint weights."""
    ours = made().eval()
    with torch.no_grad():
        ours.in_proj_weight[:8] *= 1000.0  # weights so small that they are 0
        ours.in_proj_weight[16:].copy_(torch.eye(8))
        ours.out_proj.weight.copy_(torch.eye(8))
        value = X.clone()
        value[:, 1, :4], value[:, 3, 2:6] = spoil, hidden
        for mask in (LOWER, torch.zeros(5, 5).masked_fill(LOWER, float("-inf")), LOWER * -1e9):
            plain = ours(X, X, value, attn_mask=mask, need_weights=False)[0]
            found = ours(X, X, value, attn_mask=mask)[0]
            torch.testing.assert_close(found, plain, equal_nan=True)


def test_a_dropped_value_that_is_not_finite_is_still_seen() -> None:
    """Torch multiplies it by 0, which gives NaN; a gradient stays finite."""
    ours = made(dropout=0.5)
    value = X.clone()
    value[:, 2] = float("nan")
    x = X.clone().requires_grad_()
    output, weights = ours(x, X, value, attn_mask=LOWER)
    assert (weights[:, 2:, 2] == 0).any()
    assert output[:, 2:].isnan().all()
    assert output[:, :2].isfinite().all()
    (gradient,) = torch.autograd.grad(output[:, :2].sum() + output[:, 2:].nansum(), x)
    assert gradient.isfinite().all()


def test_it_says_its_sizes() -> None:
    assert repr(made()).startswith("TorchMultiheadAttention(\n  embed_dim=8, num_heads=2, batch_")
    assert "kdim=3, vdim=8, dropout=0.1\n" in repr(Ours(8, 2, dropout=0.1, kdim=3))

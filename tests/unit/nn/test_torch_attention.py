"""TorchMultiheadAttention: what it takes over, what it keeps, what it says differently."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from headwise.nn.torch_attention import TorchMultiheadAttention as Ours
from tests.support.budget import assert_same_bits

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
LOWER = torch.ones(5, 5, dtype=torch.bool).triu(1)


def made(**settings: Any) -> Ours:
    return Ours(8, 2, batch_first=True, **settings)


def test_parameters_are_taken_over_and_optimisers_keep_working() -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.25).eval()
    optimiser = torch.optim.SGD(theirs.parameters(), 0.1)
    before = [id(p) for p in theirs.parameters()]
    ours = Ours.from_torch(theirs)
    assert [id(p) for p in ours.parameters()] == before
    assert (ours.training, ours.dropout, ours.batch_first) == (False, 0.25, True)
    assert isinstance(ours, nn.MultiheadAttention)
    old = ours(X, X, X)[0]
    torch.autograd.backward(old.square().sum())
    optimiser.step()
    assert not torch.equal(ours(X, X, X)[0], old)


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


def _assigned(layer: Ours) -> Ours:
    layer.load_state_dict(copy.deepcopy(layer.state_dict()), assign=True)
    return layer


def _replaced(layer: Ours) -> Ours:
    assert layer.in_proj_bias is not None
    layer.in_proj_bias = nn.Parameter(layer.in_proj_bias.detach().clone())
    return layer


def _through_meta(layer: Ours) -> Ours:
    state = layer.state_dict()
    layer = layer.to("meta").to_empty(device="cpu")
    layer.load_state_dict(state)
    return layer


JOURNEYS: dict[str, Callable[[Ours], Ours]] = {
    "copied": copy.deepcopy,
    "pickled": lambda layer: pickle.loads(pickle.dumps(layer)),
    "assigned": _assigned,
    "replaced": _replaced,
    "through meta": _through_meta,
    "converted": lambda layer: layer.double().float(),
    "twice": Ours.from_torch,
}


@pytest.mark.parametrize("journey", JOURNEYS.values(), ids=JOURNEYS)
def test_torchs_fused_path_stays_away(journey: Callable[[Ours], Ours]) -> None:
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    layer = Ours.from_torch(block.self_attn).eval()
    before = layer(X, X, X)[0]
    block.self_attn = journey(layer).eval()
    calls: list[int] = []
    with torch.no_grad():
        assert_same_bits(block.self_attn(X, X, X)[0], before.detach())
        handle = torch.nn.modules.module.register_module_forward_hook(
            lambda module, *_: calls.append(1) if isinstance(module, Ours) else None
        )
        block(X)
        handle.remove()
    assert calls == [1]


def test_a_bias_that_is_no_parameter_is_refused_by_the_fused_path() -> None:
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    block.self_attn = Ours.from_torch(block.self_attn)
    plain = {name: p.detach().as_subclass(Tensor) for name, p in block.named_parameters()}
    with torch.no_grad(), pytest.raises(RuntimeError, match="would pass this layer over"):
        torch.func.functional_call(block, plain, X)
    with torch.no_grad():
        right = torch.func.functional_call(block, dict(block.named_parameters()), X)
    torch.testing.assert_close(right, block(X))


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
    cross = torch.ones(5, 7, dtype=torch.bool).triu(1)
    memory = torch.randn(2, 7, 8)
    torch.testing.assert_close(
        ours(X, memory, memory, attn_mask=cross, is_causal=True),
        ours(X, memory, memory, attn_mask=cross),
    )


def test_empty_sizes() -> None:
    ours = made()
    nothing = torch.zeros(2, 0, 8)
    assert ours(nothing, X, X)[0].shape == (2, 0, 8)
    assert ours(X[:0], X[:0], X[:0])[0].shape == (0, 5, 8)
    output, weights = ours(X, nothing, nothing)
    assert weights.shape == (2, 5, 0)
    torch.testing.assert_close(output, ours.out_proj.bias.expand(2, 5, 8))

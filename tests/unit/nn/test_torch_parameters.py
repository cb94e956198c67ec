"""TorchMultiheadAttention owns plain parameters, and torch's encoders never read them past it."""

import copy
import gc
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize, prune

import headwise as hw
from headwise.nn.torch_attention import TorchMultiheadAttention as Ours
from tests.support.budget import assert_same_bits

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))


def block(training: bool = False) -> nn.TransformerEncoderLayer:
    """Return torch's block around our layer."""
    made = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(training)
    made.self_attn = Ours.from_torch(made.self_attn)
    return made


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


class Kind(nn.Parameter):
    """A kind of parameter of another library."""


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


def _assigned(layer: Ours) -> Ours:
    layer.load_state_dict(copy.deepcopy(layer.state_dict()), assign=True)
    return layer


def _replaced(layer: Ours, kind: type[nn.Parameter] = nn.Parameter) -> Ours:
    assert layer.in_proj_bias is not None
    layer.in_proj_bias = kind(layer.in_proj_bias.detach().clone())
    return layer


def _through_meta(layer: Ours) -> Ours:
    state = layer.state_dict()
    layer = layer.to("meta").to_empty(device="cpu")
    layer.load_state_dict(state)
    return layer


def _swapping(layer: Ours) -> Ours:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer.load_state_dict(copy.deepcopy(layer.state_dict()))
        return layer.double().float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def _pruned(layer: Ours) -> Ours:
    prune.l1_unstructured(layer, "in_proj_bias", amount=0.0)  # type: ignore[no-untyped-call]
    return layer.double().float()


def _parametrised(layer: Ours) -> Ours:
    assert layer.in_proj_bias is not None
    with torch.no_grad():
        layer.in_proj_bias.div_(2)
    parametrize.register_parametrization(layer, "in_proj_bias", Twice())
    return layer.double().float()


def _replica(layer: Ours) -> Ours:
    """What ``nn.DataParallel`` makes: tensors in the places of parameters."""
    made: Ours = layer._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    for name, parameter in layer.named_parameters(recurse=False):
        setattr(made, name, parameter.detach())
    return made


def _drawn_anew(layer: Ours) -> Ours:
    state = copy.deepcopy(layer.state_dict())
    layer._reset_parameters()
    layer.load_state_dict(state)
    return layer


JOURNEYS: dict[str, Callable[[Ours], Ours]] = {
    "made": lambda layer: layer,
    "copied": copy.deepcopy,
    "pickled": lambda layer: pickle.loads(pickle.dumps(layer)),
    "assigned": _assigned,
    "replaced": _replaced,
    "another kind": lambda layer: _replaced(layer, Kind),
    "through meta": _through_meta,
    "converted": lambda layer: layer.double().float(),
    "swapped": _swapping,
    "twice": Ours.from_torch,
    "pruned": _pruned,
    "parametrised": _parametrised,
    "replica": _replica,
    "drawn anew": _drawn_anew,
}


@pytest.mark.parametrize("origin", ["torch", "constructor"])
@pytest.mark.parametrize("journey", JOURNEYS.values(), ids=JOURNEYS)
def test_torchs_fused_path_stays_away(journey: Callable[[Ours], Ours], origin: str) -> None:
    around = block()
    layer = around.self_attn if origin == "torch" else Ours(8, 2, batch_first=True).eval()
    assert isinstance(layer, Ours)
    with torch.no_grad():
        assert layer.in_proj_bias is not None
        layer.in_proj_bias.add_(torch.arange(24.0))
        before = layer(X, X, X)[0]
        around.self_attn = journey(layer).eval()
        assert_same_bits(around.self_attn(X, X, X)[0], before)
        assert _calls_of_ours(lambda: around(X)) == 1


def _calls_of_ours(run: Callable[[], object]) -> int:
    calls: list[int] = []
    handle = register_module_forward_hook(
        lambda module, *_: calls.append(1) if isinstance(module, Ours) else None
    )
    run()
    handle.remove()
    return len(calls)


def test_the_parameters_are_plain_ones() -> None:
    """Optimisers with foreach ask for the very class."""
    for layer in (Ours(8, 2), Ours.from_torch(nn.MultiheadAttention(8, 2)), Ours(8, 2).double()):
        assert {type(p) for p in layer.parameters()} == {nn.Parameter}
        nn.Parameter(layer.in_proj_bias)


def test_pruned_layers_are_taken_over() -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    prune.l1_unstructured(theirs, "in_proj_bias", amount=0.5)  # type: ignore[no-untyped-call]
    wanted = theirs(X, X, X)[0]
    ours = Ours.from_torch(theirs)
    torch.testing.assert_close(ours(X, X, X)[0], wanted)
    torch.testing.assert_close(ours.double()(*[X.double()] * 3)[0].float(), wanted)


@pytest.mark.parametrize("grad", [True, False])
def test_functional_calls_and_ensembles(grad: bool) -> None:
    around = block()
    plain = {name: p.detach().as_subclass(Tensor) for name, p in around.named_parameters()}
    # Parameters of a state dict want no gradient, so their maps may run another way.
    with torch.set_grad_enabled(grad), hw.nn.projections("torch"):
        wanted = around(X)
        assert_same_bits(functional_call(around, around.state_dict(), X), wanted)
        assert_same_bits(functional_call(around, plain, X), wanted)
        others = [around, block()]
        states = stack_module_state(others)
        found = vmap(lambda *state: functional_call(around, state, (X,)))(*states)
        torch.testing.assert_close(found, torch.stack([other(X) for other in others]))


@pytest.mark.parametrize("settings", [{}, {"kdim": 3}, {"bias": False}], ids=str)
def test_parameters_are_drawn_as_torch_draws_them(settings: dict[str, int]) -> None:
    found = []
    for kind in (nn.MultiheadAttention, Ours):
        torch.manual_seed(3)
        layer = kind(8, 2, **settings)
        first = copy.deepcopy(layer.state_dict())
        layer._reset_parameters()
        found.append((first, layer.state_dict()))
    for theirs, ours in zip(*found, strict=True):
        assert list(theirs) == list(ours)
        for name, numbers in theirs.items():
            assert_same_bits(ours[name], numbers)


def test_hooks_that_are_given_the_module_get_the_new_one() -> None:
    theirs = nn.MultiheadAttention(8, 2)
    seen: list[nn.Module] = []
    theirs.register_load_state_dict_pre_hook(  # type: ignore[no-untyped-call]
        lambda module, *_: seen.append(module)
    )
    ours = Ours.from_torch(theirs)
    state = ours.state_dict()
    theirs.load_state_dict(state)
    assert seen == [theirs]
    seen.clear()
    del theirs
    gc.collect()
    ours.load_state_dict(state)
    assert seen == [ours]

"""MultiHeadAttention.from_torch: what is kept, and what is refused."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao.nn.quantizable import MultiheadAttention as Quantizable
from torch.nn.utils import parametrizations

import headwise as hw
from headwise.nn.from_torch import from_torch
from headwise.nn.torch_attention import TorchMultiheadAttention
from tests.support.budget import assert_same_bits, assert_within_budget

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("settings", [{}, {"add_bias_kv": True}, EXTRA], ids=str)
def test_low_precision(dtype: torch.dtype, autocast: bool, settings: dict[str, Any]) -> None:
    theirs = nn.MultiheadAttention(16, 2, batch_first=True, **settings)
    x = torch.randn(3, 7, 16)
    if not autocast:
        theirs, x = theirs.to(dtype), x.to(dtype)
    ours = from_torch(theirs)
    exact = copy.deepcopy(theirs).double()(*[x.double()] * 3)[0]
    with torch.autocast("cpu", dtype, enabled=autocast):
        found, plain = ours(x), theirs(x, x, x)[0]
    assert found.dtype == plain.dtype == dtype
    assert_within_budget(found, exact=exact, plain=plain, label="low precision")


@pytest.mark.parametrize("settings", [{}, {"add_bias_kv": True}, EXTRA], ids=str)
def test_on_the_meta_device(settings: dict[str, Any]) -> None:
    ours = from_torch(nn.MultiheadAttention(8, 2, device="meta", **settings))
    assert ours(X.to("meta")).shape == X.shape

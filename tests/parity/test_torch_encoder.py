"""Torch's transformer layers, and modules of others, with our layer in the place of torch's."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from headwise.nn.torch_attention import TorchMultiheadAttention
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.torch_layers import swapped

# Torch says so of its own nested tensors, which only its own layers are given.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

X = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(2))
CAUSAL = nn.Transformer.generate_square_subsequent_mask(6)


def encoder(norm_first: bool = False, swap: str = "no") -> nn.Module:
    """Return an encoder; the layer is swapped before it is built, after, or not at all."""
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    if swap == "before":
        swapped(layer)
    nested = not norm_first and swap != "before"
    made = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
    return swapped(made) if swap == "after" else made


@contextmanager
def counted() -> Iterator[list[bool]]:
    """Note whenever our forward runs."""
    calls: list[bool] = []
    forward = TorchMultiheadAttention.forward

    def noting(self: TorchMultiheadAttention, *args: Tensor, **rest: Tensor) -> object:
        calls.append(self.training)
        return forward(self, *args, **rest)  # type: ignore[arg-type]

    with patch.object(TorchMultiheadAttention, "forward", noting):
        yield calls


@pytest.mark.parametrize("swap", ["before", "after"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("mask", [None, CAUSAL, CAUSAL != 0], ids=["open", "numbers", "bool"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_our_forward_runs_in_every_mode(
    swap: str, norm_first: bool, mask: Tensor | None, grad: bool, training: bool
) -> None:
    theirs, ours = encoder(norm_first), encoder(norm_first, swap=swap)
    exact = copy.deepcopy(theirs).double()
    wide = mask if mask is None or mask.dtype == torch.bool else mask.double()
    for model in (theirs, ours, exact):
        model.train(training)
    with torch.set_grad_enabled(grad), counted() as calls:
        found = ours(X, mask=mask)
        assert calls == [training, training]
        plain, right = theirs(X, mask=mask), exact(X.double(), mask=wide)
    assert_within_budget(found, exact=right, plain=plain, label="encoder")


@contextmanager
def noted_inputs() -> Iterator[list[Tensor]]:
    """Note what our layers are given, in a way that no module sees."""
    seen: list[Tensor] = []
    handle = register_module_forward_pre_hook(
        lambda module, given: (
            seen.append(given[0]) if isinstance(module, TorchMultiheadAttention) else None
        )
    )
    yield seen
    handle.remove()


ENDS = torch.tensor([[6], [4], [2]])


@pytest.mark.parametrize("swap", ["before", "after"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("sides", ["right", "left"])
def test_padding_in_eval(swap: str, norm_first: bool, grad: bool, sides: str) -> None:
    """Padding behind its samples makes torch's encoder nest its inputs, ours ones among them."""
    theirs, ours = encoder(norm_first).eval(), encoder(norm_first, swap=swap).eval()
    padding = torch.arange(6) >= ENDS
    padding = padding if sides == "right" else padding.flip(1)
    exact = copy.deepcopy(theirs).double()
    with torch.set_grad_enabled(grad):
        with noted_inputs() as seen:
            found = ours(X, src_key_padding_mask=padding)
        plain = theirs(X, src_key_padding_mask=padding)
        right = exact(X.double(), src_key_padding_mask=padding)
    nests = swap == "after" and sides == "right" and not norm_first and not grad
    assert [x.is_nested for x in seen] == [nests, nests]
    if not nests and not grad and sides == "right" and not norm_first:
        assert (plain[padding] == 0).all()  # torch's own, which nested them
        found = found.masked_fill(padding[..., None], 0.0)
    assert_within_budget(found, exact=right, plain=plain, label="encoder")


def test_torch_says_that_an_encoder_around_ours_skips_no_padding() -> None:
    layer = swapped(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    with pytest.warns(UserWarning, match="self.use_nested_tensor is False"):
        made = nn.TransformerEncoder(layer, 1)  # type: ignore[arg-type]
    assert not made.use_nested_tensor


def test_gradients_of_a_swapped_encoder() -> None:
    theirs, ours = encoder(), encoder(swap="after")
    padding = torch.arange(6) >= ENDS
    upstream = torch.randn(3, 6, 8).masked_fill(padding[..., None], 0.0)
    found = []
    for model in (theirs, ours):
        x = X.clone().requires_grad_()
        output = model(x, src_key_padding_mask=padding)
        found.append(torch.autograd.grad(output, [x, *model.parameters()], upstream))
    for usual, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, usual)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_decoder_layers(training: bool) -> None:
    theirs = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2
    ).train(training)
    ours = swapped(copy.deepcopy(theirs))
    memory = torch.randn(3, 5, 8)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [1]])
    exact = copy.deepcopy(theirs).double()
    with counted() as calls:
        found = ours(
            X, memory, tgt_mask=CAUSAL, memory_key_padding_mask=padding, tgt_is_causal=True
        )
        assert len(calls) == 4
    plain = theirs(X, memory, tgt_mask=CAUSAL, memory_key_padding_mask=padding)
    right = exact(
        X.double(), memory.double(), tgt_mask=CAUSAL.double(), memory_key_padding_mask=padding
    )
    assert_within_budget(found, exact=right, plain=plain, label="decoder")


def test_a_whole_transformer_trains_alike() -> None:
    theirs = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
    ours = swapped(copy.deepcopy(theirs))
    losses = []
    for model in (theirs, ours):
        optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(5):
            optimiser.zero_grad()
            loss = (model(X, X[:, :4], tgt_mask=CAUSAL[:4, :4]) - X[:, 1:5]).square().mean()
            torch.autograd.backward(loss)
            optimiser.step()
        losses.append(loss.detach())
    torch.testing.assert_close(losses[1], losses[0])
    assert losses[1] < 1.5


class Patches(nn.Module):
    """A small vision transformer: patches and a class token, pre-norm, weights thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, 8, 4, 4)
        self.first = nn.Parameter(torch.randn(1, 1, 8))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.mixers = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.cut(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(tokens), -1, -1), tokens], 1)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            y = norm(x)
            x = x + mixer(y, y, y)[0]
        return x[:, 0]


class Queries(nn.Module):
    """A decoder that finds objects: positions are added to queries and keys, values have none."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(4, 1, 8))
        self.own = nn.MultiheadAttention(8, 2)
        self.cross = nn.MultiheadAttention(8, 2, kdim=6, vdim=6)

    def forward(self, memory: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        places = self.places.expand(-1, memory.shape[1], -1)
        x = torch.zeros_like(places)
        asked = x + places
        x = x + self.own(asked, asked, value=x)[0]
        found, weights = self.cross(x + places, memory, memory, key_padding_mask=padding)
        return x + found, weights


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("grad", [True, False])
def test_modules_of_others(training: bool, grad: bool) -> None:
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    for theirs, inputs in (
        (Patches(), (torch.randn(2, 3, 8, 12),)),
        (Queries(), (torch.randn(5, 2, 6), padding)),
    ):
        theirs.train(training)
        ours = swapped(copy.deepcopy(theirs))
        with torch.set_grad_enabled(grad):
            found, usual = ours(*inputs), theirs(*inputs)
        torch.testing.assert_close(found, usual)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        if grad:
            gradients = [
                torch.autograd.grad(_summed(out), list(model.parameters()))
                for out, model in ((found, ours), (usual, theirs))
            ]
            for mine, right in zip(*gradients, strict=True):
                torch.testing.assert_close(mine, right)


def _summed(found: Tensor | tuple[Tensor, ...]) -> Tensor:
    tensors = (found,) if isinstance(found, Tensor) else found
    return torch.stack([t.square().sum() for t in tensors]).sum()


@pytest.mark.parametrize("swap", ["before", "after"])
def test_a_named_hint_never_hides_the_mask(swap: str) -> None:
    """``is_causal=True`` beside another mask: the mask is what counts."""
    ours = encoder(swap=swap).eval()
    mask = torch.zeros(6, 6, dtype=torch.bool)
    mask[:, 4] = True
    with torch.no_grad():
        assert_same_bits(ours(X, mask=mask, is_causal=True), ours(X, mask=mask, is_causal=False))

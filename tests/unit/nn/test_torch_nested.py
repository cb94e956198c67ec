"""TorchMultiheadAttention with nested tensors: what torch's layer makes of them, and refusals."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.nn.torch_attention import TorchMultiheadAttention as Ours

# Torch says so of its own nested tensors.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.usefixtures("plain_calls"),
]

LENGTHS = (5, 3, 1)
SAMPLES = [torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in LENGTHS]


def _nested(layout: torch.layout = torch.strided) -> Tensor:
    return torch.nested.as_nested_tensor(SAMPLES, layout=layout)


@pytest.mark.parametrize("settings", [{}, {"average_attn_weights": False}, {"need_weights": False}])
def test_they_are_what_torch_gives(settings: dict[str, bool]) -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    ours = Ours.from_torch(copy.deepcopy(theirs))
    x = _nested()
    with torch.no_grad():
        (mine, weights), (usual, wanted) = ours(x, x, x, **settings), theirs(x, x, x, **settings)
    assert mine.is_nested
    assert mine.layout == usual.layout
    for found, right in zip(mine.unbind(), usual.unbind(), strict=True):
        torch.testing.assert_close(found, right)
    torch.testing.assert_close(weights, wanted)


@pytest.mark.parametrize("settings", [{}, {"dropout": 0.5}, {"add_bias_kv": True}], ids=str)
def test_every_sample_is_what_it_is_alone_with_gradients(settings: dict[str, Any]) -> None:
    """In training, where torch's layer takes none."""
    ours = Ours(8, 2, batch_first=True, **settings)
    ours.train("dropout" not in settings)
    leaves = [sample.clone().requires_grad_() for sample in SAMPLES]
    x = torch.nested.as_nested_tensor(leaves)
    found = ours(x, x, x, need_weights=False)[0].unbind()
    wanted = [ours(leaf, leaf, leaf)[0] for leaf in leaves]
    for mine, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, right)
    gradients = [
        torch.autograd.grad(torch.stack([t.square().sum() for t in out]).sum(), leaves)
        for out in (found, wanted)
    ]
    for mine, right in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, right)


PADDED = torch.zeros(3, 5, 8)
REFUSED: dict[str, tuple[Callable[[Ours, Tensor], object], str]] = {
    "key": (lambda m, x: m(PADDED, x, x), "query, key and value must be one nested tensor"),
    "equal": (lambda m, x: m(x, x, _nested()), "must be one nested tensor"),
    "query": (lambda m, x: m(x, PADDED, PADDED), "must be one nested tensor"),
    "padding": (lambda m, x: m(x, x, x, PADDED[..., 0] > 0), "say themselves what is padding"),
    "mask": (lambda m, x: m(x, x, x, attn_mask=PADDED[0, :, :5]), "take no masks beside them"),
    "layout": (
        lambda m, _: m(*[_nested(torch.jagged)] * 3),
        "their layout must be torch.strided, got torch.jagged",
    ),
    "order": (
        lambda _, x: Ours(8, 2)(x, x, x),
        "they have their samples first, which needs batch_first=True",
    ),
    "none": (
        lambda m, _: m(*[torch.nested.as_nested_tensor([])] * 3),
        "they hold one or more samples of (length, embed_dim)",
    ),
    "axes": (
        lambda m, _: m(*[torch.nested.as_nested_tensor([PADDED])] * 3),
        "they hold one or more samples of (length, embed_dim)",
    ),
    "width": (
        lambda m, _: m(*[torch.nested.as_nested_tensor([PADDED[0, :, :7]])] * 3),
        "with widths (8, 8, 8)",
    ),
}


@pytest.mark.parametrize(("wrong", "text"), REFUSED.values(), ids=REFUSED)
def test_other_uses_are_refused(wrong: Callable[[Ours, Tensor], object], text: str) -> None:
    with pytest.raises(hw.ShapeError) as caught:
        wrong(Ours(8, 2, batch_first=True), _nested())
    assert text in str(caught.value)

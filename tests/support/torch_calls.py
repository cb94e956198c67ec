"""What a layer makes of a drawn call, under torch's names, in several spellings."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import headwise as hw
from headwise.nn.torch_attention import TorchMultiheadAttention
from tests.support.budget import assert_within_budget, largest_error
from tests.support.torch_layers import Variant

Found = dict[str, Tensor]


def derived(outputs: dict[str, Tensor], leaves: dict[str, Tensor]) -> Found:
    """Return outputs and the gradients of leaves, for gradients of outputs that are the same."""
    source = torch.Generator().manual_seed(7)
    upstream = [torch.randn(t.shape, generator=source).to(t) for t in outputs.values()]
    grads = torch.autograd.grad(list(outputs.values()), list(leaves.values()), upstream)
    return {name: t.detach() for name, t in outputs.items()} | dict(zip(leaves, grads, strict=True))


def laid(layer: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """Turn batch-first inputs or outputs into the layout of a layer, or back."""
    return x if layer.batch_first or x.ndim == 2 else x.transpose(0, 1)


def torch_call(layer: nn.MultiheadAttention, variant: Variant, **settings: Any) -> Found:
    """Return what a layer with torch's interface gives for a call, forwards and backwards.

    Inputs that are one tensor stay one.
    """
    leaves, run = _prepared(layer, variant)
    return _collected(layer, variant, leaves, *run(**settings))


def parted_call(layer: nn.MultiheadAttention, variant: Variant, **settings: Any) -> Found:
    """Do what ``torch_call`` does, with output and weights from one call each."""
    leaves, run = _prepared(layer, variant)
    output, _ = run(need_weights=False)
    return _collected(layer, variant, leaves, output, run(**settings)[1])


def _prepared(
    layer: nn.MultiheadAttention, variant: Variant
) -> tuple[dict[int, Tensor], Callable[..., tuple[Tensor, Tensor | None]]]:
    """Return the inputs that want a gradient, and the call itself."""
    dtype = layer.out_proj.weight.dtype
    drawn = variant.inputs()
    leaves = {id(x): x.detach().to(dtype).requires_grad_() for x in drawn}
    given = {number: laid(layer, x) for number, x in leaves.items()}

    def run(**settings: Any) -> tuple[Tensor, Tensor | None]:
        masks = variant.masks(dtype, opened=not isinstance(layer, TorchMultiheadAttention))
        torch.manual_seed(variant.seed)
        with _allowing_mixed_masks():
            found: tuple[Tensor, Tensor | None] = layer(
                *(given[id(x)] for x in drawn), **masks, **settings
            )
        return found

    return leaves, run


def turned_call(layer: nn.MultiheadAttention, variant: Variant, **settings: Any) -> Found:
    """Do what ``torch_call`` does, with every axis turned round inside.

    The answer is the same; every sum is taken in another order.
    """
    dtype = layer.out_proj.weight.dtype
    drawn, masks = variant.inputs(), variant.masks(dtype, opened=True)
    leaves = {id(x): x.detach().to(dtype).requires_grad_() for x in drawn}
    given = {number: laid(layer, _turned(x)) for number, x in leaves.items()}
    for name, mask in masks.items():
        heads = variant.heads if mask.ndim == 3 else 1
        masks[name] = _turned(mask.view(-1, heads, *mask.shape[1:])).flatten(0, 1)
    parameters = {
        name: torch.cat([_turned(part) for part in t.chunk(3 if name.startswith("in_") else 1)])
        for name, t in layer.named_parameters()
    }
    with _allowing_mixed_masks():
        output, weights = functional_call(
            layer, parameters, tuple(given[id(x)] for x in drawn), masks | settings
        )
    if weights is not None:
        # Keys that the layer adds stay at the end.
        keys = [variant.kv_len, weights.shape[-1] - variant.kv_len]
        weights = torch.cat([_turned(part) for part in weights.split(keys, -1)], -1)
        if keys[1] == 2:
            weights = torch.cat([weights[..., :-2], weights[..., -2:].flip(-1)], -1)
    return _collected(layer, variant, leaves, _turned(output), weights)


def _turned(t: Tensor) -> Tensor:
    return t.flip(tuple(range(t.ndim)))


def _collected(
    layer: nn.MultiheadAttention,
    variant: Variant,
    leaves: dict[int, Tensor],
    output: Tensor,
    weights: Tensor | None,
) -> Found:
    outputs = {"output": laid(layer, output)}
    if weights is not None:
        outputs["weights"] = weights
    if variant.blind and not isinstance(layer, TorchMultiheadAttention):
        # Torch gives NaN to the first query; what it has to get is put there.
        first = torch.arange(variant.q_len).unsqueeze(1) == 0
        empty = layer.out_proj.bias if variant.bias else output.new_zeros(variant.width)
        outputs["output"] = torch.where(first, empty, outputs["output"])
        if weights is not None:
            outputs["weights"] = weights.masked_fill(first, 0.0)
    named = {f"input {number}": x for number, x in enumerate(leaves.values())}
    return derived(outputs, named | dict(layer.named_parameters()))


@contextmanager
def _allowing_mixed_masks() -> Iterator[None]:
    """Let torch take a mask of booleans beside one of numbers, of which it warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Support for mismatched")
        yield


def our_call(layer: hw.MultiHeadAttention, variant: Variant) -> Found:
    """Return what our layer gives for the call, forwards and backwards, under torch's names."""
    drawn = variant.inputs()
    leaves = {id(x): x.detach().to(variant.dtype).requires_grad_() for x in drawn}
    lead = () if variant.batch else (None,)
    output = layer(*(leaves[id(x)][lead] for x in drawn), **_our_masks(variant))
    named = {f"input {number}": x for number, x in enumerate(leaves.values())}
    found = derived(
        {"output": output if variant.batch else output[0]}, named | dict(layer.named_parameters())
    )
    weights = [found.pop(f"W_{part}.weight") for part in "qkv"]
    if {variant.kdim, variant.vdim} <= {None, variant.width}:
        found["in_proj_weight"] = torch.cat(weights)
    else:
        found |= {f"{part}_proj_weight": t for part, t in zip("qkv", weights, strict=True)}
    if variant.bias:
        found["in_proj_bias"] = torch.cat([found.pop(f"W_{part}.bias") for part in "qkv"])
    for theirs, ours in (
        ("out_proj.weight", "W_o.weight"),
        ("out_proj.bias", "W_o.bias"),
        ("bias_k", "mechanism.bias_k"),
        ("bias_v", "mechanism.bias_v"),
    ):
        if ours in found:
            moved = found.pop(ours)
            found[theirs] = moved.view(1, 1, -1) if theirs.startswith("bias_") else moved
    return found


def _our_masks(variant: Variant) -> dict[str, Tensor]:
    """Return the masks of a call as our layer takes them."""
    masks, found = variant.masks(variant.dtype), {}
    bias: Tensor | None = None
    for name, mask in masks.items():
        if name == "key_padding_mask":
            wide = mask.view(max(variant.batch, 1), 1, 1, -1)
        else:
            wide = mask.view(-1, variant.heads, *mask.shape[-2:]) if variant.per_head else mask
        if mask.dtype != torch.bool:
            bias = wide if bias is None else bias + wide
        elif name == "key_padding_mask":
            found["kv_mask"] = ~wide[:, 0, 0]
        else:
            found["mask"] = ~wide
    return found if bias is None else found | {"bias": bias}


def assert_found(found: Found, *, exact: Found, plain: list[Found], label: str) -> None:
    """Hold all of a call to the budget.

    Tensors as small as these are often nearly exact by chance. How exact the plain spellings are is
    therefore said by the least exact of all tensors of the call, in proportion to its size.
    """
    assert sorted(found) == sorted(exact), label
    sizes = {name: max(1.0, t.abs().max().item()) for name, t in exact.items()}
    share = max(largest_error(one[n], t) / sizes[n] for one in plain for n, t in exact.items())
    for name, mine in found.items():
        usual = (exact[name] + share * sizes[name]).to(mine.dtype)
        assert_within_budget(mine, exact=exact[name], plain=usual, label=f"{label} {name}")

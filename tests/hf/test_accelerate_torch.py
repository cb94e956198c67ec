"""Torch's own attention layer inside modules of others, accelerated in place."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise import hf
from headwise.hf.accelerated.torch_attention import FastMultiheadAttention
from tests.support.budget import assert_same_bits, assert_within_budget


def compare(before: Any, after: Any, *given: Tensor, label: str, **named: Any) -> None:
    with torch.no_grad():
        doubled = {
            name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
            for name, x in named.items()
        }
        exact = copy.deepcopy(before).double()(*(x.double() for x in given), **doubled)
        found, plain = after(*given, **named), before(*given, **named)
    found, plain, exact = (x[0] if isinstance(x, tuple) else x for x in (found, plain, exact))
    assert_within_budget(found, exact=exact, plain=plain, label=label)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_first": True},
        {"bias": False},
        {"kdim": 6, "vdim": 10, "batch_first": True},
        {"add_bias_kv": True, "add_zero_attn": True},
    ],
    ids=str,
)
def test_the_layer_gives_the_same(settings: dict[str, Any]) -> None:
    before = nn.MultiheadAttention(12, 3, **settings).eval()
    after = hf.accelerate(copy.deepcopy(before))
    assert type(after) is FastMultiheadAttention
    query, key, value = (torch.randn(5, 5, settings.get(n, 12)) for n in ("qdim", "kdim", "vdim"))
    padding = torch.zeros(5, 5, dtype=torch.bool)
    padding[-1, 3:] = True
    for named in ({}, {"key_padding_mask": padding, "need_weights": False}):
        compare(before, after, query, key, value, label=str(named), **named)
    again = copy.deepcopy(after)
    assert type(again) is FastMultiheadAttention
    hf.restore(again)
    assert vars(again).keys() == vars(before).keys()
    assert again._qkv_same_embed_dim is before._qkv_same_embed_dim
    assert_same_bits(again(query, key, value)[0], before(query, key, value)[0])


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_layers_call_it_in_evaluation(
    norm_first: bool, activation: str, batch_first: bool
) -> None:
    before = nn.TransformerEncoderLayer(
        12, 3, 20, 0.0, activation, batch_first=batch_first, norm_first=norm_first
    )
    after = hf.accelerate(copy.deepcopy(before))
    called = []
    after.self_attn.register_forward_hook(lambda *_: called.append(True))
    x, lower = torch.randn(5, 5, 12), torch.ones(5, 5).triu(1).bool()
    for training in (True, False):
        for named in ({}, {"src_mask": lower, "is_causal": True}):
            compare(before.train(training), after.train(training), x, label=str(named), **named)
    assert len(called) == 4
    after(x).square().sum().backward()
    before(x).square().sum().backward()
    for (name, a), b in zip(after.named_parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("nested", [True, False])
def test_an_encoder_with_padding(nested: bool) -> None:
    block = nn.TransformerEncoderLayer(12, 2, 20, 0.0, batch_first=True)
    before = nn.TransformerEncoder(block, 2, enable_nested_tensor=nested).eval()
    after = hf.accelerate(copy.deepcopy(before))
    x, padding = torch.randn(3, 7, 12), torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 4:] = padding[2, 2:] = True
    with torch.no_grad():
        found = after(x, src_key_padding_mask=padding)
        plain = before(x, src_key_padding_mask=padding)
        exact = copy.deepcopy(before).double()(x.double(), src_key_padding_mask=padding)
    assert found.shape == plain.shape
    real = ~padding
    assert_within_budget(found[real], exact=exact[real], plain=plain[real], label="encoder")


def test_a_decoder_gives_the_same_and_comes_back() -> None:
    before = nn.Transformer(12, 2, 1, 1, 20, 0.0, batch_first=True).eval()
    after = hf.accelerate(copy.deepcopy(before))
    source, target = torch.randn(2, 5, 12), torch.randn(2, 4, 12)
    lower = nn.Transformer.generate_square_subsequent_mask(4)
    compare(before, after, source, target, label="transformer", tgt_mask=lower)
    assert str(hf.restore(after)) == str(before)
    assert_same_bits(after(source, target), before(source, target))


def test_subclasses_and_parametrised_layers_are_left() -> None:
    class Own(nn.MultiheadAttention):
        """A layer of somebody else."""

    model = nn.ModuleList([Own(8, 2), nn.MultiheadAttention(8, 2)])
    nn.utils.parametrizations.weight_norm(model[1], "in_proj_weight")
    kinds = [type(part) for part in model]
    hf.accelerate(model)
    assert [type(part) for part in model] == kinds

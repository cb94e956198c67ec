"""Linear layers and activations: what is fused, found by its code, and what is left."""

import copy
import io
from importlib import import_module
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from transformers import activations
from transformers.pytorch_utils import Conv1D

from headwise import hf
from headwise.hf.accelerated.feed_forward import fast_feed_forward
from headwise.hf.accelerated.linear import FastLinear
from headwise.hf.accelerated.straight_code import computed_by
from headwise.hf.accelerated.swap import is_fast
from headwise.nn import MultiHeadAttention
from tests.support.budget import assert_same_bits, assert_within_budget

# As many rows as it takes for oneDNN to be worth starting, and a few more.
ROWS = 523
SIZES = {"hidden_size": 40, "intermediate_size": 56, "num_attention_heads": 4}

KNOWN = [
    ("bert", "BertIntermediate", "BertConfig", "gelu"),
    ("roberta", "RobertaIntermediate", "RobertaConfig", "gelu"),
    ("xlm_roberta", "XLMRobertaIntermediate", "XLMRobertaConfig", "gelu_new"),
    ("electra", "ElectraIntermediate", "ElectraConfig", "gelu"),
    ("mpnet", "MPNetIntermediate", "MPNetConfig", "gelu"),
    ("longformer", "LongformerIntermediate", "LongformerConfig", "gelu"),
    ("big_bird", "BigBirdIntermediate", "BigBirdConfig", "gelu_new"),
    ("bert", "BertPredictionHeadTransform", "BertConfig", "gelu_python"),
    ("vit", "ViTMLP", "ViTConfig", "gelu"),
    ("clip", "CLIPMLP", "CLIPTextConfig", "gelu"),
    ("siglip", "SiglipMLP", "SiglipTextConfig", "gelu_pytorch_tanh"),
    ("gpt_neox", "GPTNeoXMLP", "GPTNeoXConfig", "gelu_fast"),
    ("llama", "LlamaMLP", "LlamaConfig", "silu"),
    ("gemma", "GemmaMLP", "GemmaConfig", "gelu_pytorch_tanh"),
]


def layer(family: str, kind: str, config: str, activation: str) -> Any:
    """Return one layer of a family; every one of them has its activation as ``hidden_act``."""
    made = getattr(transformers, config)(**SIZES, hidden_act=activation, hidden_activation=None)
    made.hidden_activation = activation
    torch.manual_seed(3)
    owner = import_module(f"transformers.models.{family}.modeling_{family}")
    return getattr(owner, kind)(made).eval()


def compare(before: nn.Module, after: nn.Module, x: Tensor, label: str) -> None:
    with torch.no_grad():
        exact = copy.deepcopy(before).double()(x.double())
        assert_within_budget(after(x), exact=exact, plain=before(x), label=label)


@pytest.mark.parametrize(("family", "kind", "config", "activation"), KNOWN, ids=str)
def test_layers_of_known_families_give_the_same(
    family: str, kind: str, config: str, activation: str
) -> None:
    before = layer(family, kind, config, activation)
    after = hf.accelerate(copy.deepcopy(before))
    assert is_fast(after)
    for x in (torch.randn(1, ROWS, 40), torch.randn(3, 2, 40), torch.randn(5, 40)):
        compare(before, after, x, kind)
    assert type(hf.restore(after)) is type(before)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu", "quick_gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_activations_and_dtypes(activation: str, dtype: torch.dtype) -> None:
    before = layer("llama", "LlamaMLP", "LlamaConfig", activation).to(dtype)
    after = hf.accelerate(copy.deepcopy(before))
    compare(before, after, torch.randn(2, ROWS, 40).to(dtype), activation)


def test_gpt2s_linear_maps_give_the_same() -> None:
    before: Any = Conv1D(72, 40)  # type: ignore[no-untyped-call]
    before.bias.data.normal_()
    after = hf.accelerate(copy.deepcopy(before))
    assert is_fast(after)
    for x in (torch.randn(1, ROWS, 40), torch.randn(1, 40), torch.randn(2, 3, 40)):
        compare(before, after, x, str(x.shape))
    x = torch.randn(7, 40, requires_grad=True)
    after(x).square().sum().backward()
    found, x.grad = x.grad, None
    before(x).square().sum().backward()
    torch.testing.assert_close(found, x.grad)
    torch.testing.assert_close(after.weight.grad, before.weight.grad)


def test_distilberts_chunks_are_found() -> None:
    config = transformers.DistilBertConfig(dim=40, hidden_dim=56, chunk_size_feed_forward=0)
    owner = import_module("transformers.models.distilbert.modeling_distilbert")
    before = owner.FFN(config).eval()
    after = hf.accelerate(copy.deepcopy(before))
    assert type(after).__name__ == "FastFFN"
    compare(before, after, torch.randn(1, ROWS, 40), "FFN")


@pytest.mark.parametrize("name", ["gelu_new", "gelu_fast", "gelu_accurate"])
def test_activations_alone_take_one_pass(name: str) -> None:
    before = activations.get_activation(name)  # type: ignore[no-untyped-call]
    after = hf.accelerate(copy.deepcopy(before))
    assert is_fast(after)
    x = torch.cat([torch.randn(1001) * 4, torch.tensor([0.0, 1e4, -1e4])])
    compare(before, after, x, name)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_bits(after(x), before(x), name)


def test_saved_layers_come_back() -> None:
    after = hf.accelerate(layer(*KNOWN[0]))
    kept = io.BytesIO()
    torch.save(after, kept)
    kept.seek(0)
    loaded = torch.load(kept, weights_only=False)
    assert type(loaded) is type(after) is not type(hf.restore(after))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        import_module("headwise.hf.accelerated.feed_forward").nothing  # noqa: B018


def test_listeners_are_heard_and_replaced_activations_run() -> None:
    before = layer(*KNOWN[0])
    after = hf.accelerate(copy.deepcopy(before))
    x, heard = torch.randn(2, 3, 40), []
    hook = after.dense.register_forward_hook(lambda *_: heard.append("dense"))
    compare(before, after, x, "a hook")
    assert heard == ["dense"]
    hook.remove()
    after.dense.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
    torch.testing.assert_close(after(x), before(2 * x))
    for model in (before, after):
        model.intermediate_act_fn = nn.Sigmoid()
    torch.testing.assert_close(after(x), before(2 * x))
    after.intermediate_act_fn.forward = torch.zeros_like
    assert not after(x).any()


class Plain(nn.Module):
    """A class of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.act, self.two = nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return self.two(self.act(self.one(x)))


class Branching(Plain):
    def forward(self, x: Tensor) -> Any:
        return self.act(self.one(x)) if self.training else self.one(x)


class Global(Plain):
    def forward(self, x: Tensor) -> Any:
        return torch.tanh(self.act(self.one(x)))


class Adding(Plain):
    def forward(self, x: Tensor) -> Any:
        return x + self.act(self.one(x))


class Keeping(Plain):
    def forward(self, x: Tensor) -> Any:
        self.kept = self.act(self.one(x))
        return self.kept


class Settings(Plain):
    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        return self.act(self.one(x)) * scale


class Reading(Plain):
    def forward(self, x: Tensor) -> Any:
        return self.act(self.one(x)) * self.one.weight


def test_code_that_does_anything_else_is_not_taken() -> None:
    assert str(computed_by(Plain.forward)).count("Step") == 3
    for kind in (Branching, Global, Adding, Keeping, Settings, Reading):
        assert computed_by(kind.forward) is None, kind
    assert computed_by(torch.relu) is None
    assert fast_feed_forward(Plain) is None


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_layers_that_are_no_plain_ones_are_left() -> None:
    normed = parametrizations.weight_norm(nn.Linear(4, 4))
    replaced = nn.Linear(4, 4)
    replaced.forward = lambda x: x  # type: ignore[method-assign, assignment]
    quantised = torch.ao.nn.quantized.dynamic.Linear(4, 4)  # type: ignore[no-untyped-call]
    ours = MultiHeadAttention(8, 2)
    model = nn.ModuleList([normed, replaced, quantised, nn.LayerNorm(4), nn.Conv1d(4, 4, 1), ours])
    kinds = [type(part) for part in model.modules()]
    hf.accelerate(model)
    assert [type(part) for part in model.modules()] == kinds
    assert type(ours.W_q) is nn.Linear


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_inputs_work() -> None:
    plain = nn.Linear(40, 8)
    fast = hf.accelerate(copy.deepcopy(plain))
    assert type(fast) is FastLinear
    nested = torch.nested.nested_tensor([torch.randn(3, 40), torch.randn(5, 40)])
    for found, wanted in zip(fast(nested).unbind(), plain(nested).unbind(), strict=True):
        torch.testing.assert_close(found, wanted)

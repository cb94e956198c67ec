"""What is done with accelerated models: trained, adapted, quantised, saved, put into pipelines."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from headwise import hf
from headwise.hf.accelerated.swap import is_fast
from tests.cli.folders import BERT, LLAMA, byte_tokenizer
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.hf_tiny import answer, inputs, tiny, without_dropout

TRAINED = ["bert", "gpt2", "llama", "t5", "mpnet"]


def steps(model: Any, given: dict[str, Tensor], count: int = 3) -> dict[str, Tensor]:
    """Train for some steps and return the parameters that moved."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(count):
        optimiser.zero_grad()
        torch.autograd.backward(answer(model, given).square().mean())
        optimiser.step()
    return {n: p.detach() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", TRAINED)
def test_three_steps_of_training_end_at_the_same_weights(name: str) -> None:
    before = without_dropout(tiny(name, "eager"))
    after, given = hf.accelerate(copy.deepcopy(before)), inputs(name, "right")
    exact = copy.deepcopy(before).double()
    found, plain, wanted = (steps(model, given) for model in (after, before, exact))
    assert found.keys() == plain.keys()
    for label, weight in found.items():
        assert_within_budget(weight, exact=wanted[label], plain=plain[label], label=label)


@pytest.mark.parametrize("name", ["bert", "llama", "longformer"])
def test_checkpointed_gradients_are_the_same(name: str) -> None:
    model = hf.accelerate(without_dropout(tiny(name, "eager")))
    given, found = inputs(name, "right"), []
    for checkpointed in (False, True):
        if checkpointed:
            model.activation_checkpointing_enable()
            assert model.is_activation_checkpointing
        model.zero_grad()
        torch.autograd.backward(answer(model, given).square().mean())
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(found[0]) == len(found[1]) > 10
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


class LowRank(nn.Module):
    """What adapters put in the place of a linear layer that they keep and freeze."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, 3, bias=False)
        self.lora_B = nn.Linear(3, base.out_features, bias=False)

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    def forward(self, x: Tensor) -> Any:
        return self.base_layer(x) + self.lora_B(self.lora_A(x)) * 0.5


@pytest.mark.parametrize("adapted_first", [True, False])
def test_adapters_of_frozen_layers_learn_the_same(adapted_first: bool) -> None:
    before = without_dropout(tiny("bert", "eager")).requires_grad_(False)
    after = copy.deepcopy(before) if adapted_first else hf.accelerate(copy.deepcopy(before))
    for model in (before, after):
        torch.manual_seed(4)
        for layer in model.encoder.layer:
            layer.attention.self.value = LowRank(layer.attention.self.value)
            layer.intermediate.dense = LowRank(layer.intermediate.dense)
    hf.accelerate(after)
    assert is_fast(after.encoder.layer[0].intermediate.dense.base_layer)
    exact, given = copy.deepcopy(before).double(), inputs("bert", "right")
    found, plain, wanted = (steps(model, given) for model in (after, before, exact))
    assert len(found) == 8
    for label, weight in found.items():
        assert_within_budget(weight, exact=wanted[label], plain=plain[label], label=label)
    merged = after.encoder.layer[0].intermediate
    merged.dense = merged.dense.base_layer
    assert answer(hf.restore(after), given).isfinite().all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_quantised_linears_are_left_and_reported() -> None:
    quantised = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
        tiny("bert", "sdpa"), {nn.Linear}, dtype=torch.qint8
    )
    after = hf.accelerate(copy.deepcopy(quantised))
    given = inputs("bert", "right")
    with torch.no_grad():
        found, plain = answer(after, given), answer(quantised, given)
    real = given["attention_mask"].bool()
    torch.testing.assert_close(found[real], plain[real], atol=0.05, rtol=0.0)
    lines = str(hf.report(after))
    assert "linear layers: 13 left: DynamicQuantizedLinear computes in its own way" in lines
    assert "headwise serves 2 of 2" in lines


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_torch_quantises_linears_again_once_they_are_restored() -> None:
    """It looks for exact classes, so it passes accelerated layers over."""
    quantise: Any = torch.ao.quantization.quantize_dynamic
    model = hf.accelerate(tiny("bert", "sdpa"))
    for count in (0, 13):
        made = quantise(model, {nn.Linear}, dtype=torch.qint8)
        found = [type(part).__module__ for part in made.modules()]
        assert sum("quantized" in name for name in found) >= count
        assert count or not any("quantized" in name for name in found)
        hf.restore(model)


class FourBit(nn.Linear):
    """A subclass with a forward of its own, as libraries of few bits have."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).round(decimals=1)


class Scaled(Tensor):
    """A parameter that is another tensor, as libraries of quantised tensors make it."""


def with_few_bits() -> Any:
    torch.manual_seed(4)
    layer = tiny("bert", "sdpa").encoder.layer[0]
    layer.intermediate.dense = FourBit(24, 40)
    layer.output.dense.weight = nn.Parameter(torch.randn(24, 40).as_subclass(Scaled))
    return layer


def test_layers_of_few_bits_are_left_and_reported() -> None:
    before, after = with_few_bits(), hf.accelerate(with_few_bits())
    assert type(after.output.dense.weight) is Scaled
    assert type(after.intermediate.dense) is FourBit
    assert not is_fast(after.intermediate)
    assert not is_fast(after.output.dense)
    lines = str(hf.report(after))
    assert "1 left: FourBit computes in its own way" in lines
    assert "1 left: its weight is a Scaled" in lines
    x = torch.randn(2, 7, 24)
    with torch.no_grad():
        torch.testing.assert_close(after(x), before(x))


def test_a_layer_that_is_quantised_later_is_called() -> None:
    layer = hf.accelerate(tiny("bert", "sdpa")).encoder.layer[0]
    assert is_fast(layer.intermediate)
    layer.intermediate.dense = FourBit(24, 40)
    x = torch.randn(2, 7, 24)
    with torch.no_grad():
        wanted = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(x))
        assert_same_bits(layer.intermediate(x), wanted)


def test_safetensors_know_no_difference(tmp_path: Path) -> None:
    before = tiny("bert", "sdpa")
    after, given = hf.accelerate(copy.deepcopy(before)), inputs("bert")
    save_model(after, str(tmp_path / "after.safetensors"))
    plain: Any = transformers.BertModel
    other = plain(before.config).eval()
    load_model(other, str(tmp_path / "after.safetensors"))
    fresh = hf.accelerate(plain(before.config).eval())
    save_model(before, str(tmp_path / "before.safetensors"))
    load_model(fresh, str(tmp_path / "before.safetensors"))
    with torch.no_grad():
        assert_same_bits(answer(other, given), answer(before, given), "loaded plain")
        assert_same_bits(answer(fresh, given), answer(after, given), "loaded accelerated")


def test_pipelines_give_the_same() -> None:
    torch.manual_seed(1)
    tokenizer, text = byte_tokenizer(), ["a cat", "seven little dogs ran"]
    reader: Any = transformers.BertModel(transformers.BertConfig(**BERT))
    made: Any = transformers.pipeline
    embedder = made("feature-extraction", model=reader.eval(), tokenizer=tokenizer)
    plain = embedder(text, batch_size=2)
    hf.accelerate(embedder.model)
    for one, other in zip(embedder(text, batch_size=2), plain, strict=True):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other))
    tokenizer.padding_side = "left"
    writer: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    writer.lm_head.weight.data.mul_(50)
    writes = made("text-generation", model=writer.eval(), tokenizer=tokenizer)
    settings: dict[str, Any] = {"max_new_tokens": 7, "do_sample": False, "batch_size": 2}
    said = writes(text, **settings)
    hf.accelerate(writes.model)
    assert is_fast(writes.model.model.layers[0].mlp)
    assert writes(text, **settings) == said


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "gpt_neox", "whisper"])
def test_models_on_a_device_without_numbers_give_shapes(name: str) -> None:
    """What asks for numbers on the way would wait for an accelerator in every layer."""
    given = {key: x for key, x in inputs(name).items() if key != "attention_mask"}
    with torch.no_grad():
        wanted = answer(tiny(name), given)
        for model in (tiny(name), hf.accelerate(tiny(name, "eager"))):
            found = answer(model.to("meta"), {key: x.to("meta") for key, x in given.items()})
            assert found.device.type == "meta"
            assert found.shape == wanted.shape

"""accelerate and restore: the same answers, in place, and back, whatever is done to the model."""

import copy
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from headwise import hf
from headwise.errors import BackendRefused
from headwise.hf.accelerated.swap import is_fast
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.hf_tiny import answer, inputs, padded, tiny, tokens

NAMES = ["bert", "roberta", "modernbert", "gpt2", "llama", "t5", "bart", "whisper", "vit"]


def pair(name: str, **changes: Any) -> tuple[Any, Any]:
    """Return a model, and the same one accelerated."""
    before = tiny(name, "sdpa", **changes)
    return before, hf.accelerate(copy.deepcopy(before))


def assert_same_answers(before: Any, after: Any, given: dict[str, Tensor], label: str) -> None:
    with torch.no_grad():
        found, plain = answer(after, given), answer(before, given)
        exact = answer(copy.deepcopy(before).double(), _double(given))
    mask = given.get("attention_mask")
    if mask is not None and found.shape[1] == mask.shape[1]:
        found, plain, exact = (x[mask.bool()] for x in (found, plain, exact))
    assert_within_budget(found, exact=exact, plain=plain, label=label)


def _double(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.double() if x.is_floating_point() else x for name, x in given.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["none", "right"])
def test_answers_stay_the_same(name: str, side: str) -> None:
    before, after = pair(name)
    assert_same_answers(before, after, inputs(name, side), name)
    assert any(is_fast(module) for module in after.modules())


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_answers_stay_the_same_in_bfloat16_and_float64(name: str) -> None:
    before, after = pair(name)
    given = inputs(name)
    with torch.no_grad():
        exact = answer(copy.deepcopy(before).double(), given)
        torch.testing.assert_close(answer(after.double(), given), exact)
        found, plain = answer(after.bfloat16(), given), answer(before.bfloat16(), given)
    assert_within_budget(found, exact=exact, plain=plain, label=name)


def test_long_inputs_run_fused_and_give_the_same() -> None:
    before, after = pair("bert", max_position_embeddings=640, intermediate_size=72)
    given = {"input_ids": tokens(2, 601), "attention_mask": padded("right", 2, 601, 7)}
    assert_same_answers(before, after, given, "bert")


@pytest.mark.parametrize("name", NAMES)
def test_restoring_gives_the_old_bits_and_classes(name: str) -> None:
    before, after = pair(name)
    assert hf.accelerate(after) is after
    assert str(hf.report(hf.accelerate(after))) == str(hf.report(after))
    assert hf.restore(after) is after
    assert str(after) == str(before)
    given = inputs(name)
    with torch.no_grad():
        assert_same_bits(answer(after, given), answer(before, given), name)
    assert after.config._attn_implementation == before.config._attn_implementation
    assert not [key for part in after.modules() for key in vars(part) if "headwise" in key]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_training_goes_on(name: str) -> None:
    before, after = pair(name)
    given = inputs(name)
    for model in (before, after):
        for part in model.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        model.config.attention_probs_dropout_prob = model.config.attention_dropout = 0.0
        for part in model.modules():
            if isinstance(getattr(part, "attention_dropout", None), float):
                part.attention_dropout = 0.0
        model.train()
        torch.autograd.backward(answer(model, given).square().sum())
    exact = copy.deepcopy(before).double()
    exact.zero_grad()
    torch.autograd.backward(answer(exact, given).square().sum())
    rows = zip(*(dict(m.named_parameters()).items() for m in (after, before, exact)), strict=True)
    for (label, found), (_, plain), (_, wanted) in rows:
        if plain.grad is None:
            assert found.grad is None, label
            continue
        assert_within_budget(found.grad, exact=wanted.grad, plain=plain.grad, label=label)


def test_dropout_in_training_is_drawn() -> None:
    _, after = pair("bert")
    after.train()
    first, second = (answer(after, inputs("bert")) for _ in range(2))
    assert not torch.equal(first, second)


def test_an_optimiser_changes_what_is_computed() -> None:
    _, after = pair("bert", max_position_embeddings=640)
    given = {"input_ids": tokens(1, 601)}
    with torch.no_grad():
        first = answer(after, given)
    steps = torch.optim.SGD(after.parameters(), 0.1)
    torch.autograd.backward(answer(after.train(), given).square().mean())
    steps.step()
    after.eval()
    with torch.no_grad():
        second = answer(after, given)
        assert (first - second).abs().max() > 1e-4
        assert_same_answers(hf.restore(copy.deepcopy(after)), after, given, "after a step")


def test_copies_pickles_and_saved_models_are_as_before(tmp_path: Path) -> None:
    before, after = pair("bert")
    given = inputs("bert")
    kept = io.BytesIO()
    torch.save(after, kept)
    kept.seek(0)
    loaded = torch.load(kept, weights_only=False)
    after.save_pretrained(tmp_path)
    plain = transformers.AutoModel.from_pretrained(
        tmp_path, attn_implementation=before.config._attn_implementation
    ).eval()
    with torch.no_grad():
        wanted = answer(after, given)
        assert_same_bits(answer(loaded, given), wanted, "loaded")
        assert_same_bits(answer(copy.deepcopy(after), given), wanted, "copied")
        assert_same_bits(answer(plain, given), answer(before, given), "from_pretrained")
    assert str(loaded) == str(after)
    assert not any(is_fast(module) for module in plain.modules())
    assert str(hf.restore(loaded)) == str(before)
    assert list(after.state_dict()) == list(before.state_dict())


@pytest.mark.slow
def test_a_pickled_model_runs_in_a_new_process(tmp_path: Path) -> None:
    _, after = pair("bert")
    torch.save(after, tmp_path / "model.pt")
    code = (
        "import sys, torch, headwise as hw; hw.hf.register(); "
        "model = torch.load(sys.argv[1], weights_only=False); "
        "print(model(torch.ones(1, 3, dtype=torch.long)).last_hidden_state.shape)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.pt")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.strip() == "torch.Size([1, 3, 24])", ran.stderr


def test_hooks_hear_what_they_heard() -> None:
    before, after = pair("bert")
    heard: dict[str, list[str]] = {"before": [], "after": []}
    for label, model in (("before", before), ("after", after)):
        for name, part in model.named_modules():
            part.register_forward_hook(lambda *_, n=name, s=heard[label]: s.append(n))
        model(**inputs("bert"))
    assert heard["before"] == heard["after"]


def test_autocast_and_inference_mode() -> None:
    before, after = pair("gpt2")
    given = inputs("gpt2")
    with torch.inference_mode():
        assert_same_answers(before, after, given, "inference mode")
        with torch.autocast("cpu", torch.bfloat16):
            found, plain = answer(after, given), answer(before, given)
        exact = answer(copy.deepcopy(before).double(), given)
    assert found.dtype == plain.dtype
    assert_within_budget(found, exact=exact, plain=plain, label="autocast")


class Embedder(nn.Module):
    """Holds a model as libraries of sentence embeddings do; shares a part, and is no model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.shared = model, nn.Linear(24, 24)
        self.again = self.shared

    def forward(self, **given: Tensor) -> Any:
        states: Tensor = self.model(**given).last_hidden_state
        return self.again(self.shared(states).mean(1))


def test_modules_that_hold_a_model_share_parts_or_are_parts() -> None:
    before = Embedder(tiny("bert", "sdpa"))
    after: Any = hf.accelerate(copy.deepcopy(before))
    given = inputs("bert")
    assert after.shared is after.again
    torch.testing.assert_close(after(**given), before(**given))
    assert hf.report(after).rows[0].served
    hf.restore(after.model.encoder.layer[0])
    assert not any(is_fast(module) for module in after.model.encoder.layer[0].modules())
    assert any(is_fast(module) for module in after.model.encoder.layer[1].modules())
    torch.testing.assert_close(after(**given), before(**given))
    alone: Any = copy.deepcopy(before)
    hf.accelerate(alone.model.encoder.layer[0])
    torch.testing.assert_close(alone(**given), before(**given))


class Adapter(nn.Module):
    """A low-rank adapter around a linear layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.down, self.up = nn.Linear(24, 2, bias=False), nn.Linear(2, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base_layer(x) + self.up(self.down(x))
        return found


def test_adapters_keep_working_before_and_after() -> None:
    before, given = tiny("bert", "sdpa"), inputs("bert")
    layer = before.encoder.layer[0].attention.self
    layer.query = Adapter(layer.query)
    after = hf.accelerate(copy.deepcopy(before))
    assert is_fast(after.encoder.layer[0].attention.self.query.base_layer)
    assert_same_answers(before, after, given, "adapter before")
    for model in (before, after):
        torch.manual_seed(5)
        inner = model.encoder.layer[1].intermediate
        inner.dense = nn.Sequential(inner.dense, nn.LayerNorm(40))
    assert_same_answers(before, after, given, "adapter after")


def test_a_model_with_attention_of_its_own_inside_is_taken_in_parts() -> None:
    sizes: dict[str, Any] = {
        "attention_window": 4,
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "vocab_size": 61,
    }
    inner = transformers.LongformerConfig(
        **sizes, num_attention_heads=6, intermediate_size=40, max_position_embeddings=64
    )
    outer: Any = transformers.EncoderDecoderModel(
        encoder=transformers.LongformerModel(inner),
        decoder=transformers.BertLMHeadModel(
            transformers.BertConfig(
                **{k: v for k, v in sizes.items() if k != "attention_window"},
                num_attention_heads=6,
                intermediate_size=40,
                is_decoder=True,
                add_cross_attention=True,
            )
        ),
    )
    outer.eval()
    hf.register()
    with pytest.raises(BackendRefused):
        outer.set_attn_implementation("headwise")
    hf.accelerate(outer)
    assert outer.decoder.config._attn_implementation == "headwise"
    assert all(row.served for row in hf.report(outer))
    hf.restore(outer)
    assert outer.decoder.config._attn_implementation == "sdpa"


def test_parts_keep_the_implementations_that_they_had() -> None:
    sizes: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 6}
    sizes["intermediate_size"] = 40
    config = transformers.CLIPConfig(
        text_config={**sizes, "vocab_size": 61},
        vision_config={**sizes, "image_size": 8, "patch_size": 2},
    )
    model: Any = transformers.CLIPModel(config)
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})
    hf.accelerate(model)
    assert all(row.served for row in hf.report(model))
    hf.restore(model)
    assert model.text_model.config._attn_implementation == "eager"
    assert model.vision_model.config._attn_implementation == "sdpa"


def test_models_without_numbers_can_be_accelerated() -> None:
    config = tiny("bert").config
    with torch.device("meta"):
        model: Any = transformers.BertModel(config)
    hf.accelerate(model)
    assert all(row.served for row in hf.report(model))
    model.to_empty(device="cpu")
    model.load_state_dict(tiny("bert").state_dict(), strict=False)


@pytest.mark.slow
def test_compiled_models_give_the_same() -> None:
    before, after = pair("bert")
    given = inputs("bert")
    with torch.no_grad():
        found = answer(torch.compile(after, backend="eager"), given)
        torch.testing.assert_close(found, answer(before, given))

"""Converted models in files: never loaded as something else, and how to come back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import headwise as hw
from headwise import hf
from headwise.errors import BackendRefused
from tests.support.hf_tiny import answer, inputs, tiny

WINDOW = hw.Window(2, 1)
LOW = hw.nn.LowRank(4, 64)


def saved(folder: Path, name: str, mechanism: Any, layers: list[int] | None = None) -> Any:
    model = hf.convert(tiny(name), mechanism, layers=layers)
    model.save_pretrained(folder)
    return model


def loaded(folder: Path, name: str, **named: Any) -> Any:
    """Load with the class that was saved."""
    return type(tiny(name)).from_pretrained(folder, **named).eval()


def test_a_file_says_what_was_converted(tmp_path: Path) -> None:
    model = saved(tmp_path, "bert", WINDOW, [1])
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["attn_implementation"] == "headwise"
    assert config["headwise_attention"] == {
        "encoder.layer.1.attention.self": {
            "attention": "Window(left=2, right=1, dilation=1)",
            "tensors": False,
        }
    }
    assert not hasattr(model.config, "headwise_attention")
    hf.convert(model, None).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert not {"headwise_attention", "attn_implementation"} & config.keys()


@pytest.mark.parametrize(("name", "layers"), [("bert", [1]), ("llama", None), ("t5", [2])])
def test_a_loaded_model_waits_to_be_converted(
    name: str, layers: list[int] | None, tmp_path: Path
) -> None:
    wanted = answer(saved(tmp_path, name, WINDOW, layers), inputs(name))
    model = loaded(tmp_path, name)
    message = r"was saved with the attention Window\(left=2, right=1, dilation=1\), and has its own"
    with pytest.raises(BackendRefused, match=message):
        answer(model, inputs(name))
    assert sum("was saved converted to" in row.reason for row in hf.report(model)) == sum(
        not row.served for row in hf.report(model)
    )
    hf.convert(model, WINDOW, layers=layers)
    torch.testing.assert_close(answer(model, inputs(name)), wanted, rtol=0, atol=0)
    model.save_pretrained(tmp_path)
    with pytest.raises(BackendRefused, match=message):
        answer(loaded(tmp_path, name), inputs(name))


def test_one_that_waits_is_saved_as_it_was(tmp_path: Path) -> None:
    saved(tmp_path, "bert", WINDOW)
    loaded(tmp_path, "bert").save_pretrained(tmp_path)
    with pytest.raises(BackendRefused, match="was saved with the attention Window"):
        answer(loaded(tmp_path, "bert"), inputs("bert"))


def test_softmax_when_asked_for(tmp_path: Path) -> None:
    saved(tmp_path, "bert", WINDOW)
    with pytest.raises(
        BackendRefused, match=r"in 2 modules, got attn_implementation='sdpa', which"
    ):
        loaded(tmp_path, "bert", attn_implementation="sdpa")
    model = hf.restore(loaded(tmp_path, "bert"))
    wanted = answer(tiny("bert"), inputs("bert"))
    torch.testing.assert_close(answer(model, inputs("bert")), wanted, rtol=0, atol=0)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(answer(model, inputs("bert")), wanted)
    answer(type(model)(model.config).eval(), inputs("bert"))


@pytest.mark.parametrize("mechanism", [LOW, hw.nn.RandomFeatures(8, seed=5)], ids=str)
def test_tensors_of_a_mechanism_are_loaded_or_missed(mechanism: Any, tmp_path: Path) -> None:
    wanted = answer(saved(tmp_path, "bert", mechanism), inputs("bert"))
    model = hf.convert(loaded(tmp_path, "bert"), mechanism)
    with pytest.raises(BackendRefused, match="was saved with tensors of its attention, and those"):
        answer(model, inputs("bert"))
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(answer(model, inputs("bert")), wanted, rtol=0, atol=0)
    anew = hf.convert(hf.restore(loaded(tmp_path, "bert")), mechanism)
    answer(anew, inputs("bert"))


@pytest.mark.parametrize("to", ["AutoModel", "AutoModelForMaskedLM"])
def test_another_head(to: str, tmp_path: Path) -> None:
    """The modules have shorter or longer names there."""
    start = "AutoModelForMaskedLM" if to == "AutoModel" else "AutoModel"
    first = getattr(transformers, start).from_config(tiny("bert").config)
    hf.convert(first, WINDOW).save_pretrained(tmp_path)
    model = getattr(transformers, to).from_pretrained(tmp_path)
    with pytest.raises(BackendRefused, match="was saved with the attention Window"):
        model(**inputs("bert"))
    hf.convert(model, WINDOW)(**inputs("bert"))


def test_a_part_that_was_converted(tmp_path: Path) -> None:
    """T5's encoder has a configuration of its own; the whole model's is the one that is saved."""
    model = tiny("t5")
    hf.convert(model.get_encoder(), WINDOW)
    model.save_pretrained(tmp_path)
    other = loaded(tmp_path, "t5")
    with pytest.raises(BackendRefused, match="was saved with the attention Window"):
        answer(other, inputs("t5"))
    hf.convert(other.get_encoder(), WINDOW)
    torch.testing.assert_close(answer(other, inputs("t5")), answer(model, inputs("t5")))


def test_torch_saves_a_whole_model(tmp_path: Path) -> None:
    model = hf.convert(tiny("bert"), LOW)
    torch.save(model, tmp_path / "model.pt")
    other = torch.load(tmp_path / "model.pt", weights_only=False)
    torch.testing.assert_close(answer(other, inputs("bert")), answer(model, inputs("bert")))


def test_transformers_alone_refuses_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(saved(tmp_path, "bert", WINDOW))
    monkeypatch.delitem(transformers.AttentionInterface._global_mapping, "headwise")
    with pytest.raises(ValueError, match=r'Specified `attn_implementation="headwise"` is not sup'):
        kind.from_pretrained(tmp_path)

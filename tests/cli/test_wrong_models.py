"""Models and prompts that cannot be right: one line, exit code 2, no traceback."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from headwise.cli.models import positions_of
from tests.cli.folders import CONTEXT, FALCON, save
from tests.cli.typed import assert_refused, typed

BOTH = pytest.mark.parametrize("command", ["generate", "embed"])


def folder_of(command: str, request: pytest.FixtureRequest) -> Path:
    """Return a model of the kind that a command takes."""
    found: Path = request.getfixturevalue({"generate": "writer", "embed": "reader"}[command])
    return found


def changed(folder: Path, target: Path, **numbers: Any) -> str:
    """Copy a model folder and change its configuration."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **numbers}))
    return str(target)


@BOTH
def test_no_such_folder(command: str) -> None:
    result = typed(command, "./no/such/folder", "hello")
    assert_refused(result, 2, f"headwise {command}: there is no folder ./no/such/folder")


@BOTH
def test_a_file(command: str, tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_text("x")
    assert_refused(typed(command, str(file), "hello"), 2, "is a file; MODEL is a transformers")


@BOTH
def test_a_folder_of_something_else(command: str, tmp_path: Path) -> None:
    assert_refused(typed(command, str(tmp_path), "hello"), 2, "holds no config.json")


@BOTH
def test_an_unknown_name(command: str) -> None:
    assert_refused(typed(command, "no-one/has-this", "hello"), 2, "cannot open the model no-one")


@BOTH
def test_an_unknown_model_type(command: str, writer: Path, tmp_path: Path) -> None:
    folder = changed(writer, tmp_path, model_type="flux-capacitor")
    assert_refused(typed(command, folder, "hello"), 2, "cannot open the model", "flux-capacitor")


@BOTH
def test_a_damaged_configuration(command: str, writer: Path, tmp_path: Path) -> None:
    folder = changed(writer, tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert_refused(typed(command, folder, "hello"), 2, "cannot open the model")


@BOTH
def test_damaged_weights(command: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = changed(folder_of(command, request), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    assert_refused(typed(command, folder, "hello"), 2, "cannot open the model")


@BOTH
def test_weights_that_do_not_fit(
    command: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = changed(folder_of(command, request), tmp_path, num_hidden_layers=3)
    count, named = {"generate": (9, "layers.2."), "embed": (16, "layer.2.")}[command]
    assert_refused(typed(command, folder, "hello"), 2, f"lacks {count} of the weights", named)


@BOTH
def test_an_empty_text(command: str, writer: Path) -> None:
    assert_refused(typed(command, str(writer), " \n"), 2, "is empty")


@BOTH
def test_a_text_longer_than_the_context(command: str, writer: Path) -> None:
    text = "x" * (CONTEXT + 1)
    assert_refused(typed(command, str(writer), text), 2, f"{CONTEXT + 1} tokens", f"{CONTEXT}")


@BOTH
def test_an_empty_name(command: str) -> None:
    words = {"generate": ("", "hello"), "embed": ("--model", "", "hello")}[command]
    assert_refused(typed(command, *words), 2, "MODEL is empty; name a transformers folder or a")


@BOTH
def test_no_tokenizer(command: str, writer: Path, tmp_path: Path) -> None:
    folder = changed(writer, tmp_path)
    for file in tmp_path.glob("token*"):
        file.unlink()
    says = ("cannot open the tokenizer of", "You need to have sentencepiece or tiktoken installed")
    assert_refused(typed(command, folder, "hello"), 2, *says)


@BOTH
def test_a_model_that_fails_while_it_runs(
    command: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise IndexError("out of range\nmore")

    monkeypatch.setattr(transformers.LlamaModel, "forward", failing)
    monkeypatch.setattr(transformers.BertModel, "forward", failing)
    folder = str(folder_of(command, request))
    says = f"{command}: {folder} failed while it ran: IndexError: out of range"
    assert_refused(typed(command, folder, "hello"), 1, says)


def test_embed_with_weights_that_are_no_numbers(reader: Path, tmp_path: Path) -> None:
    folder = changed(reader, tmp_path)
    model: Any = transformers.BertModel.from_pretrained(folder)
    model.encoder.layer[0].output.dense.bias.data[3] = float("nan")
    model.save_pretrained(folder)
    result = typed("embed", folder, "hello", "--json")
    assert_refused(result, 1, "made vectors that hold NaN or infinity")


@pytest.mark.parametrize("modules", ["{", '{"a": 1}', '[{"type": 3, "path": ""}]', "[{}]"])
def test_embed_with_damaged_modules(modules: str, reader: Path, tmp_path: Path) -> None:
    folder = changed(reader, tmp_path)
    (tmp_path / "modules.json").write_text(modules)
    says = f"{tmp_path / 'modules.json'} does not say what it should"
    assert_refused(typed("embed", folder, "hello"), 2, says)


def test_embed_with_a_model_of_sounds(writer: Path, tmp_path: Path) -> None:
    heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6}
    folder = changed(writer, tmp_path, model_type="whisper", architectures=None, **heads)
    result = typed("embed", folder, "hello")
    assert_refused(result, 2, "is a whisper model, which takes input_features and no text")


def test_a_limit_below_one_is_none() -> None:
    assert positions_of(transformers.XLNetConfig()) is None


@BOTH
def test_an_encoder_decoder(command: str, writer: Path, tmp_path: Path) -> None:
    heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6}
    folder = changed(writer, tmp_path, model_type="bart", architectures=["BartModel"], **heads)
    says = {
        "generate": "holds BartModel, which does not continue text",
        "embed": "of the weights that BartModel needs",
    }
    assert_refused(typed(command, folder, "hello"), 2, says[command])


@BOTH
def test_transformers_missing(command: str, writer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "transformers" else found(name, *rest),
    )
    result = typed(command, str(writer), "hello")
    assert_refused(result, 1, "this needs transformers: pip install 'headwise[hf]'")


def test_generate_with_an_encoder(reader: Path) -> None:
    result = typed("generate", str(reader), "hello")
    assert_refused(result, 2, "holds BertModel, which does not continue text")


def test_generate_with_no_room_left(writer: Path) -> None:
    result = typed("generate", str(writer), "x" * (CONTEXT - 7), "--max-new-tokens", "8")
    assert_refused(result, 2, f"a context of {CONTEXT}; use --max-new-tokens 7")
    longest = typed("generate", str(writer), "x" * (CONTEXT - 7), "--max-new-tokens", "7")
    assert longest.exit_code == 0


def test_generate_with_three_arguments(writer: Path) -> None:
    assert_refused(typed("generate", str(writer), "two", "words"), 2, "put the prompt in quotes")


@pytest.mark.parametrize("option", ["--seed", "--top-k"])
def test_generate_with_an_option_that_would_do_nothing(option: str, writer: Path) -> None:
    result = typed("generate", str(writer), "hello", "--temperature", "0", option, "3")
    assert_refused(result, 2, "--temperature above 0")


def test_generate_without_a_prompt() -> None:
    result = typed("generate")
    assert result.exit_code == 2
    assert "Missing argument" in result.stderr


def test_embed_with_a_decoder(writer: Path) -> None:
    result = typed("embed", str(writer), "hello")
    assert_refused(result, 2, "is a llama model, which reads from left to right only", "as a BERT")


def test_embed_with_a_model_of_texts_and_images(reader: Path, tmp_path: Path) -> None:
    folder = changed(reader, tmp_path, model_type="clip", architectures=["CLIPModel"])
    assert_refused(typed("embed", folder, "hello"), 2, "is a clip model, which gives no sentence")


def test_embed_without_a_text(writer: Path) -> None:
    assert_refused(typed("embed", str(writer)), 2, "no text given")


def test_generate_with_a_model_that_attends_by_its_own_code(tmp_path: Path) -> None:
    config = transformers.BloomConfig(vocab_size=258, hidden_size=24, n_layer=2, n_head=6)
    folder = save(transformers.BloomForCausalLM(config), tmp_path)
    assert_refused(
        typed("generate", str(folder), "hello"),
        2,
        f"cannot open the model {folder}: BloomForCausalLM attends by its own code "
        "(BloomAttention) and never asks transformers' attention interface; --accelerate replaces "
        "that code",
    )


def test_generate_with_a_model_that_nothing_can_be_put_into(tmp_path: Path) -> None:
    folder = save(transformers.FalconForCausalLM(transformers.FalconConfig(**FALCON)), tmp_path)
    way_out = "headwise has nothing to put in place of that code; --accelerate makes the rest"
    assert_refused(typed("generate", str(folder), "hello"), 2, "FalconAttention", way_out)

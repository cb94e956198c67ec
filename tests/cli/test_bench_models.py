"""bench --model: before and after accelerate, and in other runtimes where they are installed."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import headwise as hw
from headwise.cli.bench.models import measuring, peers
from headwise.cli.bench.models.gate import check
from headwise.cli.bench.models.peers import Peer, ready
from headwise.cli.bench.models.subject import subject
from headwise.cli.bench.models.work import NEW_TOKENS, work
from headwise.cli.failures import Unable
from tests.cli import folders
from tests.cli.typed import assert_refused, typed


@pytest.fixture(autouse=True)
def _five_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounds(calls: dict[str, Callable[[], Any]], seconds: float) -> Any:
        for turn in range(5):
            yield {name: 1.0 + turn + n for n, name in enumerate(calls)}

    monkeypatch.setattr(measuring, "rounds", rounds)
    monkeypatch.setattr(measuring, "PEERS", ())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bare configuration."""
    file = tmp_path_factory.mktemp("bare") / "config.json"
    config = {**folders.LLAMA, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    file.write_text(json.dumps(config))
    return str(file)


def bench(*words: str) -> dict[str, Any]:
    result = typed("bench", "--quick", *words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_an_encoder(reader: Path) -> None:
    found = bench("--model", str(reader), "--tokens", "31", "--batch", "3", "--threads", "1")
    assert (found["model"], found["class"], found["weights"]) == (
        str(reader),
        "BertModel",
        "loaded",
    )
    assert found["work"] == "a forward pass of 3 x 31 tokens"
    assert (found["dtype"], found["attention_before"]) == ("float32", "sdpa")
    assert found["report"][0] == "BertModel: headwise serves 2 of 2 attention modules"
    before, after = found["rows"]
    assert (before["form"], after["form"]) == ("before", "accelerate")
    assert before["milliseconds"] == {"median": 3000.0, "low": 2000.0, "high": 4000.0}
    assert before["over_before"] is None
    assert after["over_before"]["median"] == 3 / 4
    assert (before["rate"], before["unit"]) == (31.0, "tokens/s")
    assert 0 < after["error"] < 1e-4
    assert found["complete"]


def test_a_bare_configuration_gets_random_weights(llama: str) -> None:
    result = typed("bench", "--quick", "--model", llama, "--tokens", "31")
    assert result.exit_code == 0, result.output
    machine, model, *_ = result.stdout.splitlines()
    assert machine.endswith(f"torch {torch.__version__}")
    assert model == (
        f"{llama}: LlamaForCausalLM, 27,870 parameters, random weights, float32; "
        "a forward pass of 1 x 31 tokens; median (quartiles), error against float64"
    )
    assert "LlamaForCausalLM: headwise serves 2 of 2 attention modules" in result.stdout
    folder = str(Path(llama).parent)
    assert bench("--model", folder, "--tokens", "5")["weights"] == "random"


def test_writing(llama: str) -> None:
    found = bench("--model", llama, "--tokens", "31", "--generate")
    assert found["work"] == f"{NEW_TOKENS} new tokens for each of 1 x 31 tokens"
    assert found["rows"][0]["unit"] == "new tokens/s"
    assert found["writes_differ_at"] is None


@pytest.mark.parametrize("generate", [(), ("--generate",)])
def test_a_pair_in_bfloat16(generate: tuple[str, ...], tmp_path: Path) -> None:
    config = transformers.BartConfig(**folders.BART)
    config.architectures = ["BartForConditionalGeneration"]
    config.save_pretrained(tmp_path)
    words = ("--model", str(tmp_path), "--tokens", "29", "--dtype", "bfloat16", *generate)
    found = bench(*words)
    assert (found["class"], found["dtype"]) == ("BartForConditionalGeneration", "bfloat16")
    written = "1 x 29 tokens" if generate else "1 x 29 tokens, 1 x 7 written"
    assert found["work"].endswith(f"of {written}")


def test_images_and_sounds(tmp_path: Path) -> None:
    seen = {
        "vit": transformers.ViTConfig(
            hidden_size=24,
            num_hidden_layers=1,
            num_attention_heads=6,
            intermediate_size=40,
            image_size=8,
            patch_size=2,
        ),
        "whisper": transformers.WhisperConfig(
            **{**folders.BART, "max_source_positions": 10, "max_target_positions": 64},
            num_mel_bins=8,
        ),
    }
    works = {}
    for name, config in seen.items():
        config.save_pretrained(tmp_path / name)
        model = subject(str(tmp_path / name), torch.float32).model
        works[name] = work(name, model, tokens=9, batch=2, generate=False).described
    assert works == {
        "vit": "a forward pass of 2 x 8 x 8 pixels",
        "whisper": "a forward pass of 2 x 20 frames, 2 x 2 written",
    }


def test_weights_are_not_held_twice(reader: Path) -> None:
    opened = subject(str(reader), torch.float32)
    asked = work("x", opened.model, tokens=7, batch=1, generate=False)
    seen: list[int] = []
    accelerated = hw.hf.accelerate

    def watched(model: Any) -> Any:
        seen.extend(weight.data_ptr() for weight in model.parameters())
        return accelerated(model)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hw.hf, "accelerate", watched)
        measuring.measure(opened, asked, 0.0, lambda what, done: None)
    assert seen == [weight.data_ptr() for weight in opened.model.parameters()]
    assert opened.model.config._attn_implementation == "sdpa"


def test_what_was_measured_before_ctrl_c_is_shown(
    reader: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(calls: dict[str, Callable[[], Any]], seconds: float) -> Any:
        yield dict.fromkeys(calls, 0.5)
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "rounds", interrupted)
    words = ("bench", "--quick", "--model", str(reader), "--tokens", "7")
    told = typed(*words)
    assert (told.exit_code, told.stderr) == (130, "headwise bench: stopped\n")
    assert ["accelerate", "500", "(500-500)"] in [
        line.split()[:3] for line in told.stdout.splitlines()
    ]
    assert "stopped after 1 rounds" in told.stdout
    assert json.loads(typed(*words, "--json").stdout)["complete"] is False


def test_ctrl_c_before_anything_was_measured(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(calls: dict[str, Callable[[], Any]], seconds: float) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "rounds", interrupted)
    told = typed("bench", "--model", str(reader), "--tokens", "7")
    assert (told.exit_code, told.stdout) == (130, "")


def test_a_wrong_answer_is_not_measured(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerated = hw.hf.accelerate

    def wrong(model: Any) -> Any:
        made = accelerated(model)
        made.embeddings.word_embeddings.weight = torch.nn.Parameter(
            made.embeddings.word_embeddings.weight * 1.001
        )
        return made

    monkeypatch.setattr(hw.hf, "accelerate", wrong)
    told = typed("bench", "--model", str(reader), "--tokens", "7")
    assert_refused(told, 1, "headwise bench: accelerate: the answer is wrong by ", "is allowed")


def test_the_gate_by_hand() -> None:
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    plain = torch.tensor([1.0, 2.001])
    assert check("x", torch.tensor([1.0, 2.0039]), plain, exact) == pytest.approx(0.0039, rel=1e-3)
    with pytest.raises(Unable, match=r"^x: the answer is wrong by 4\.1"):
        check("x", torch.tensor([1.0041, 2.0]), plain, exact)
    check("x", torch.tensor([1.0041, 2.0]), plain, exact, peer=True)
    with pytest.raises(Unable, match="the model as it was answers NaN or infinity"):
        check("x", plain, plain * torch.nan, exact)
    with pytest.raises(Unable, match="wrong by nan"):
        check("x", torch.tensor([torch.nan, 2.0]), plain, exact)


def test_peers(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(module: Any, inputs: tuple[Tensor, ...]) -> Any:
        return lambda: module(*inputs)

    def wrong(module: Any, inputs: tuple[Tensor, ...]) -> Any:
        return lambda: module(*inputs) + 1.0

    def failing(module: Any, inputs: tuple[Tensor, ...]) -> Any:
        raise RuntimeError("\x1b[96mno such operator\x1b[0m\nmore")

    tried = (
        Peer("right", ("torch",), built),
        Peer("wrong", ("torch",), wrong),
        Peer("failing", ("torch",), failing),
        Peer("absent", ("torch", "no_such_runtime"), built),
    )
    monkeypatch.setattr(measuring, "PEERS", tried)
    words = ("--model", str(reader), "--tokens", "7")
    found = bench(*words)
    assert [row["form"] for row in found["rows"]] == ["before", "accelerate", "right"]
    reasons = found["not_measured"]
    assert reasons.pop("wrong").startswith("wrong: the answer is wrong by 1.0")
    assert reasons == {
        "failing": "the model cannot be brought there: no such operator",
        "absent": "no_such_runtime not installed",
    }
    told = typed("bench", "--quick", *words).stdout
    assert "absent was not measured: no_such_runtime not installed\n" in told
    low = bench(*words, "--dtype", "bfloat16")["not_measured"]
    assert set(low.values()) == {"only float32 is brought there"}


def test_what_the_peers_need(reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = subject(str(reader), torch.float32).model
    asked = work("x", model, tokens=7, batch=1, generate=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert [ready(peer, model, asked) for peer in peers.PEERS] == [
        "onnxruntime, onnx, onnxscript not installed",
        "openvino not installed",
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "./none"), "there is no folder ./none"),
        (("--model", "./none.json"), "there is no file ./none.json"),
        (("--model", "{reader}", "--tokens", "98"), "takes 97 tokens at once; use --tokens 97"),
        (("--model", "{reader}", "--generate"), "is a BertModel, which writes no text"),
        (("--model", "{llama}", "--generate", "--tokens", "66"), "97, and 32 tokens are written; "),
        (("--tokens", "3", "--generate"), "--tokens, --generate: only with --model"),
        (
            ("--model", "x", "--mechanisms", "--layer", "1"),
            "does not go with --mechanisms, --layer",
        ),
        (("--model", "x", "--case", "y"), "--model does not go with --case"),
    ],
)
def test_wrong_inputs(words: tuple[str, ...], says: str, reader: Path, llama: str) -> None:
    named = [word.format(reader=reader, llama=llama) for word in words]
    assert_refused(typed("bench", *named), 2, says)


def test_a_model_that_takes_something_else(tmp_path: Path) -> None:
    config = transformers.Wav2Vec2Config(
        num_hidden_layers=1,
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=40,
        conv_dim=(8,),
        conv_stride=(4,),
        conv_kernel=(4,),
    )
    config.save_pretrained(tmp_path)
    result = typed("bench", "--model", str(tmp_path))
    assert_refused(result, 2, "takes input_values; bench makes up input_ids, pixel_values, ")

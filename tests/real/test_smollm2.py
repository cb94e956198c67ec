"""A trained language model of 135 million parameters, 9 query heads over 3 key/value heads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import headwise as hw
from headwise.cli.models import source, text_model

pytestmark = [pytest.mark.real, pytest.mark.slow]

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    ",
)
Write = Callable[[str, int], list[int]]


def _writes(folder: Path, attention: str, new_cache: Callable[[], Any]) -> Write:
    opened = source(str(folder))
    model = text_model(opened, attention)

    def write(prompt: str, count: int) -> list[int]:
        tokens = opened.tokenizer(prompt, return_tensors="pt")
        out = model.generate(**tokens, max_new_tokens=count, do_sample=False, cache=new_cache())
        new: list[int] = out[0, tokens["input_ids"].shape[1] :].tolist()
        return new

    return write


@pytest.fixture(scope="module")
def ours(smollm2: Path) -> Write:
    return _writes(smollm2, "headwise", hw.hf.Cache)


@pytest.fixture(scope="module")
def theirs(smollm2: Path) -> Write:
    return _writes(smollm2, "sdpa", transformers.DynamicCache)


def test_it_knows_the_capital_of_france(ours: Write, smollm2: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    assert " Paris" in tokenizer.decode(ours(PROMPTS[0], 8))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_64_greedy_tokens_are_those_of_transformers(
    prompt: str, ours: Write, theirs: Write
) -> None:
    assert ours(prompt, 64) == theirs(prompt, 64)


def test_the_converted_folder_is_whole(smollm2: Path) -> None:
    files = {file.name for file in smollm2.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
    config = transformers.AutoConfig.from_pretrained(smollm2)
    assert not hasattr(config, "quantization_config")
    model = text_model(source(str(smollm2)), "sdpa")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008

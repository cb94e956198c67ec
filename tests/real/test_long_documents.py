"""Longformer and BigBird on a licence of thousands of tokens, and what 16,384 tokens take."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from headwise import hf
from headwise.ops import tally
from tests.support.long_models import FAMILIES, long_model

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.parametrize("name", FAMILIES)]

TOKENS = 4096
LICENCE = Path("/usr/share/common-licenses/GPL-3")


@pytest.fixture(scope="module")
def document(minilm: Path) -> Tensor:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(minilm)
    ids: Tensor = tokenizer(LICENCE.read_text(), return_tensors="pt", verbose=False)["input_ids"]
    assert ids.shape[1] > TOKENS
    return ids[:, :TOKENS]


def test_the_states_are_those_of_transformers(name: str, document: Tensor) -> None:
    model, given = long_model(name), {"input_ids": document}
    if name == "longformer":
        given["global_attention_mask"] = torch.zeros_like(document)
        given["global_attention_mask"][0, [0, 700, TOKENS - 1]] = 1
    with torch.inference_mode():
        wanted = model(**given, output_hidden_states=True).hidden_states
        hf.accelerate(model)
        with tally() as ran:
            found = model(**given, output_hidden_states=True).hidden_states
    assert set(ran) == {"native"}
    assert len(found) == len(wanted) == 3
    for one, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, right, atol=1e-4, rtol=0)


def test_memory_grows_as_the_length_does(name: str) -> None:
    """Measured peaks are rough; what grows with the square would be 4 and 16 times as large."""
    lengths = (4096, 8192, 16_384)
    command = [sys.executable, "-m", "tests.support.long_models", name, *map(str, lengths)]
    folder = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    four, eight, sixteen = json.loads(done.stdout)
    said = f"{four:.0f}, {eight:.0f} and {sixteen:.0f} MB"
    assert 0 < sixteen < 16_384**2 / 1e6, said
    assert sixteen < 3 * eight, said
    assert sixteen < 8 * four, said

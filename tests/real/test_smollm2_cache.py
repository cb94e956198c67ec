"""What 8 bits cost a trained language model: perplexity on a long text, bytes of its cache."""

from itertools import pairwise
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.cli.models import source, text_model
from headwise.ops import tally

pytestmark = [pytest.mark.real, pytest.mark.slow]

TOKENS = 4096
PROMPT = 3584
CHUNK = 16  # the most queries that are read in place
LICENCE = Path("/usr/share/common-licenses/GPL-3")


@pytest.fixture(scope="module")
def read(smollm2: Path) -> tuple[Any, Tensor]:
    opened = source(str(smollm2))
    ids = opened.tokenizer(LICENCE.read_text(), return_tensors="pt")["input_ids"][:, :TOKENS]
    assert ids.shape[1] == TOKENS
    return text_model(opened), ids


def _perplexity(model: Any, ids: Tensor, cache: Any) -> float:
    """Read the text through the cache, the end of it in steps that attend in place."""
    edges = [*range(0, PROMPT, 512), *range(PROMPT, TOKENS + 1, CHUNK)]
    lost = 0.0
    with torch.inference_mode():
        for start, end in pairwise(edges):
            logits = model(ids[:, start:end], cache=cache).logits[0]
            following = ids[0, start + 1 : end + 1]
            given = logits[: len(following)].log_softmax(-1).gather(1, following[:, None])
            lost -= given.double().sum().item()
    return exp(lost / (TOKENS - 1))


def test_8_bits_keep_the_perplexity_in_a_quarter_of_the_bytes(read: tuple[Any, Tensor]) -> None:
    model, ids = read
    whole, small = hw.hf.Cache(model.config), hw.hf.Cache(model.config, dtype=torch.int8)
    with tally() as ran:
        exact, found = (_perplexity(model, ids, cache) for cache in (whole, small))
    said = f"{exact:.4f} and {found:.4f}, {whole.nbytes:,} and {small.nbytes:,} bytes"
    assert set(ran) == {"native"}
    assert abs(found / exact - 1) < 0.005, said
    assert small.nbytes <= 0.27 * whole.nbytes, said

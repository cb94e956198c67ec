"""A trained language model through ``accelerate`` and every kind of cache."""

import copy
from collections.abc import Callable
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.cli.models import source, text_model
from headwise.ops import tally
from tests.support.budget import assert_within_budget

pytestmark = [pytest.mark.real, pytest.mark.slow]

TOKENS = 1024
SHORT = 64
LICENCE = Path("/usr/share/common-licenses/GPL-3")
# What holds every token as it is, so that nothing but rounding may differ.
EXACT: dict[str, Callable[[Any], Any]] = {
    "grows": hw.hf.Cache,
    "fixed": lambda config: hw.hf.Cache(config, capacity=128),
    "paged": lambda config: hw.hf.Cache(config, pool=hw.PagePool()),
    "window": lambda config: hw.hf.Cache(config, window=100),
}


@pytest.fixture(scope="module")
def text(smollm2: Path) -> Tensor:
    opened = source(str(smollm2))
    ids: Tensor = opened.tokenizer(LICENCE.read_text(), return_tensors="pt")["input_ids"]
    return ids[:, :TOKENS]


@pytest.fixture(scope="module")
def theirs(smollm2: Path) -> Any:
    return text_model(source(str(smollm2)), "eager")


@pytest.fixture(scope="module")
def ours(theirs: Any) -> Any:
    return hw.hf.accelerate(copy.deepcopy(theirs))


@pytest.fixture(scope="module")
def beginning(theirs: Any, text: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the first tokens in one pass of eager attention, in float32 and float64."""
    with torch.inference_mode():
        plain = theirs(text[:, :SHORT]).logits
        exact = copy.deepcopy(theirs).double()(text[:, :SHORT]).logits
    return plain, exact


def test_the_perplexity_is_that_of_eager_attention(ours: Any, theirs: Any, text: Tensor) -> None:
    with tally() as ran:
        found = _perplexity(ours, text, hw.hf.Cache(ours.config))
    assert set(ran) == {"native"}
    wanted = _perplexity(theirs, text, None)
    assert found == pytest.approx(wanted, rel=1e-4)
    assert found == pytest.approx(19.3, abs=0.1)


def _perplexity(model: Any, ids: Tensor, cache: Any) -> float:
    with torch.inference_mode():
        logits = model(ids, cache=cache, use_cache=cache is not None).logits[0, :-1]
        given = logits.log_softmax(-1).gather(1, ids[0, 1:, None])
    return exp(-given.double().mean().item())


@pytest.mark.parametrize("kind", EXACT)
def test_steps_with_a_cache_are_the_whole_pass(
    kind: str, ours: Any, text: Tensor, beginning: tuple[Tensor, Tensor]
) -> None:
    plain, exact = beginning
    cache = EXACT[kind](ours.config)
    with torch.inference_mode(), tally() as ran:
        pieces = [
            ours(piece, cache=cache).logits
            for piece in torch.split(text[:, :SHORT], [40, 17, 1, 1, 5], 1)
        ]
    assert set(ran) == {"native"}
    assert cache.get_seq_length() == SHORT
    assert_within_budget(torch.cat(pieces, 1), exact=exact, plain=plain, label=kind)


def test_8_bits_answer_nearly_the_same(
    ours: Any, text: Tensor, beginning: tuple[Tensor, Tensor]
) -> None:
    _, exact = beginning
    cache = hw.hf.Cache(ours.config, dtype=torch.int8)
    with torch.inference_mode():
        ours(text[:, : SHORT - 8], cache=cache)
        found = ours(text[:, SHORT - 8 : SHORT], cache=cache).logits[0]
    wanted = exact[0, -8:]
    assert torch.equal(found.argmax(-1), wanted.argmax(-1))
    lost = (wanted.softmax(-1) * (wanted.log_softmax(-1) - found.double().log_softmax(-1))).sum(-1)
    assert lost.max() < 0.02, lost

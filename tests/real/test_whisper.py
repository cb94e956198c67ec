"""Recorded prompts written down by a trained encoder-decoder, as with transformers' attention."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from headwise import hf
from headwise.ops import tally
from tests.support.telephone_prompts import (
    RATE,
    Prompt,
    longest_prompts,
    word_errors,
    words_of,
)

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    # Its own generate, where the words that a model never writes are part of its configuration.
    pytest.mark.filterwarnings("ignore:Passing `generation_config` together"),
]

COUNT = 27
STEP = 1 if os.environ.get("HEADWISE_THOROUGH") else 5  # every fifth takes a quarter of a minute


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return longest_prompts(COUNT)[STEP - 1 :: STEP]


@pytest.fixture(scope="module")
def features(whisper: Path, prompts: list[Prompt]) -> Tensor:
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(whisper)
    sounds = [prompt.sound.numpy() for prompt in prompts]
    found: Tensor = extractor(sounds, sampling_rate=RATE, return_tensors="pt").input_features
    return found


@pytest.fixture(scope="module")
def theirs(whisper: Path) -> Any:
    kind: Any = transformers.WhisperForConditionalGeneration
    return kind.from_pretrained(whisper, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def ours(theirs: Any) -> Any:
    return hf.accelerate(copy.deepcopy(theirs))


@pytest.fixture(scope="module")
def heard(ours: Any, theirs: Any, features: Tensor) -> tuple[Tensor, Tensor]:
    """What both encoders make of the sounds."""
    with torch.inference_mode(), tally() as ran:
        mine = ours.get_encoder()(features).last_hidden_state
    assert set(ran) == {"native"}
    with torch.inference_mode():
        right = [theirs.get_encoder()(one[None]).last_hidden_state for one in features]
    return mine, torch.cat(right)


def _written(model: Any, heard: Tensor, beams: int, new_cache: Any = None) -> list[list[int]]:
    found = []
    for one in heard:
        given: dict[str, Any] = {"encoder_outputs": BaseModelOutput(one[None])}
        if new_cache is not None:
            given["cache"] = new_cache()
        with torch.inference_mode():
            found.append(model.generate(**given, num_beams=beams)[0].tolist())
    return found


def _our_caches() -> EncoderDecoderCache:
    return EncoderDecoderCache(hf.Cache(), hf.Cache())


@pytest.mark.parametrize("beams", [1, 5])
def test_the_text_is_that_of_eager_attention_and_mostly_right(
    beams: int,
    ours: Any,
    theirs: Any,
    heard: tuple[Tensor, Tensor],
    prompts: list[Prompt],
    whisper: Path,
) -> None:
    with tally() as ran:
        found = _written(ours, heard[0], beams, _our_caches)
    assert set(ran) == {"native"}
    assert found == _written(theirs, heard[1], beams)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(whisper)
    texts = tokenizer.batch_decode(found, skip_special_tokens=True)
    wrong = [word_errors(words_of(t), p.words) for t, p in zip(texts, prompts, strict=True)]
    said = sum(len(prompt.words) for prompt in prompts)
    assert sum(wrong) <= 0.08 * said, f"{wrong} of {said} words in {texts}"


def test_words_are_timed_as_by_eager_attention(
    ours: Any, theirs: Any, prompts: list[Prompt], whisper: Path
) -> None:
    """Their times come from the weights of a few heads of cross attention."""
    prompt = prompts[-1]
    found, wanted = (_timed(model, prompt, whisper) for model in (ours, theirs))
    assert found == wanted
    assert len(found["chunks"]) == len(found["text"].split())
    times = [moment for chunk in found["chunks"] for moment in chunk["timestamp"]]
    assert times == sorted(times)
    assert 0.6 * prompt.seconds < times[-1] <= prompt.seconds + 0.1


def _timed(model: Any, prompt: Prompt, folder: Path) -> Any:
    library: Any = transformers
    listen = library.pipeline(
        "automatic-speech-recognition",
        model=model,
        tokenizer=library.AutoTokenizer.from_pretrained(folder),
        feature_extractor=library.WhisperFeatureExtractor.from_pretrained(folder),
    )
    with tally() as ran:
        found: Any = listen(prompt.sound.numpy(), return_timestamps="word")
    assert set(ran) == ({"native"} if hf.report(model).rows[0].served else set())
    return found

"""Made-up inputs for a model: tokens, images or sounds, the same in every run."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.cli.failures import WrongInput
from headwise.cli.models import positions_of

# Below it stand the special tokens of most vocabularies.
_FIRST_TOKEN = 8


@dataclass(frozen=True)
class Given:
    """What a model is given.

    Attributes:
        tensors: By the names of its arguments.
        described: What they are, for people.
        parts: How many tokens or images there are in all.
        unit: What they are.
    """

    tensors: dict[str, Tensor]
    described: str
    parts: int
    unit: str


def given(name: str, model: Any, *, tokens: int, batch: int) -> Given:
    """Make up what a model takes, nothing of it padding.

    Args:
        name: What the model is called.
        model: A model of transformers.
        tokens: Tokens of a sample; of images and sounds the model says the size.
        batch: Samples.

    Raises:
        WrongInput: The model takes something else, or fewer tokens.
    """
    makers = {"input_ids": _texts, "pixel_values": _images, "input_features": _sounds}
    taken = model.main_input_name
    if taken not in makers:
        raise WrongInput(f"{name} takes {taken}; bench makes up {', '.join(makers)}")
    room = positions_of(model.config.get_text_config())
    if taken == "input_ids" and room is not None and tokens > room:
        raise WrongInput(f"{name} takes {room} tokens at once; use --tokens {room}")
    return makers[taken](model.config, tokens, batch)


def targets(config: Any, tokens: int, batch: int) -> Tensor:
    """Make up what the decoder of a pair has written."""
    return _numbers(config.get_text_config(), (batch, tokens), seed=1)


def _texts(config: Any, tokens: int, batch: int) -> Given:
    ids = _numbers(config.get_text_config(), (batch, tokens), seed=0)
    tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Given(tensors, f"{batch} x {tokens} tokens", batch * tokens, "tokens")


def _images(config: Any, tokens: int, batch: int) -> Given:
    sides = config.image_size
    high, wide = (sides, sides) if isinstance(sides, int) else sides
    pixels = _drawn((batch, config.num_channels, high, wide))
    return Given({"pixel_values": pixels}, f"{batch} x {high} x {wide} pixels", batch, "images")


def _sounds(config: Any, tokens: int, batch: int) -> Given:
    frames = 2 * config.max_source_positions
    heard = _drawn((batch, config.num_mel_bins, frames))
    return Given({"input_features": heard}, f"{batch} x {frames} frames", batch, "sounds")


def _numbers(config: Any, shape: tuple[int, int], seed: int) -> Tensor:
    first = min(_FIRST_TOKEN, config.vocab_size - 1)
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(first, config.vocab_size, shape, generator=draw)


def _drawn(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))

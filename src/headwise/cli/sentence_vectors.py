"""Sentence vectors: the mean of a text's token vectors, scaled to length 1."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.cli.models import Source

_TOGETHER = 16


def sentence_vectors(model: Any, opened: Source, texts: Sequence[str]) -> Tensor:
    """Return one vector per text, (texts, width), each of length 1.

    Padding is left out of the mean, so a text's vector does not depend on its companions.

    Args:
        model: An encoder of transformers.
        opened: Where its tokenizer is.
        texts: What to turn into vectors.
    """
    found = []
    with torch.inference_mode():
        for start in range(0, len(texts), _TOGETHER):
            part = list(texts[start : start + _TOGETHER])
            tokens = opened.tokenizer(part, padding=True, return_tensors="pt")
            states = model(**tokens).last_hidden_state
            found.append(mean_of_real(states, tokens["attention_mask"]))
    return torch.cat(found)


def mean_of_real(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens where ``mask`` is 1, scaled to length 1."""
    real = mask.to(states.dtype).unsqueeze(-1)
    mean = (states * real).sum(1) / real.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)

"""Sentence vectors: the mean of a text's token vectors, scaled to length 1."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from headwise.cli.models import Source

_TOGETHER = 16


def sentence_vectors(model: Any, opened: Source, texts: Sequence[str]) -> Tensor:
    """Return one vector per text, (texts, width), each of length 1.

    Padding is left out of the mean, so a text's vector does not depend on its companions, but in
    models that attend in another way to longer inputs, padding included, as BigBird does.

    Args:
        model: An encoder of transformers.
        opened: Where its tokenizer is.
        texts: What to turn into vectors.
    """
    found = []
    with torch.inference_mode():
        for start in range(0, len(texts), _TOGETHER):
            tokens = tokens_for(model, opened, texts[start : start + _TOGETHER])
            states = model(**tokens).last_hidden_state
            found.append(mean_of_real(states, tokens["attention_mask"]))
    return torch.cat(found)


def tokens_for(model: Any, opened: Source, texts: Sequence[str]) -> dict[str, Tensor]:
    """Return texts as the tensors that a model takes, padded to the longest of them.

    Args:
        model: What takes them; kinds of tokens are left out where it has none.
        opened: Where its tokenizer is.
        texts: What to turn into tokens.
    """
    tokens = opened.tokenizer(list(texts), padding=True, return_tensors="pt")
    if "token_type_ids" not in signature(model.forward).parameters:
        tokens.pop("token_type_ids", None)
    return dict(tokens)


def mean_of_real(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens where ``mask`` is 1, scaled to length 1."""
    real = mask.to(states.dtype).unsqueeze(-1)
    mean = (states * real).sum(1) / real.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)

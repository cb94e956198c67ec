"""Sentence vectors: the mean of a text's token vectors, scaled to length 1."""

import json
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.cli.failures import WrongInput
from headwise.cli.models import Source

_TOGETHER = 16
_OTHER_POOLINGS = (
    "cls_token",
    "max_tokens",
    "mean_sqrt_len_tokens",
    "weightedmean_tokens",
    "lasttoken",
)


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


def meant_otherwise(model: str) -> str | None:
    """Say what a folder of sentence-transformers makes of token vectors besides their mean.

    Args:
        model: Folder or hub id; of a hub id nothing is known.

    Returns:
        The other steps, by name; ``None`` where there are none.

    Raises:
        WrongInput: What describes the folder cannot be read.
    """
    folder = Path(model).expanduser()
    if not (folder / "modules.json").is_file():
        return None
    try:
        modules = json.loads((folder / "modules.json").read_text())
        steps = [step for module in modules for step in _steps(folder, **module)]
    except (ValueError, TypeError, AttributeError) as error:
        raise WrongInput(f"{folder / 'modules.json'} does not say what it should") from error
    return ", ".join(steps) or None


def _steps(folder: Path, type: str, path: str, **_: object) -> list[str]:
    """Name what a module does besides the mean; its arguments are those of its description."""
    kind = type.rpartition(".")[2]
    if kind != "Pooling":
        return [] if kind in ("Transformer", "Normalize") else [kind]
    asked = json.loads((folder / path / "config.json").read_text())
    modes = [name.removeprefix("pooling_mode_") for name, value in asked.items() if value is True]
    return [f"Pooling ({mode})" for mode in modes if mode in _OTHER_POOLINGS]


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

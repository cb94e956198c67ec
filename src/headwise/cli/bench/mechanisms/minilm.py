"""Queries, keys and values of a trained encoder that reads a real text."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from headwise.cli import demo_models
from headwise.cli.bench.mechanisms.states import States
from headwise.cli.failures import Unable, WrongInput
from headwise.cli.models import Source, encoder, source
from headwise.cli.output import waiting
from headwise.cli.packages import require

# Tokens that MiniLM has positions for.
PASSAGE = 512
_TOGETHER = 8


def real_states(layer: int, length: int) -> States:
    """Return what one layer of MiniLM attends with, reading the documentation of Python.

    The text is cut into passages of as many tokens as the model takes, each read by itself; then
    their queries, keys and values stand one after the other. Nothing is changed in the text's
    order, and no passage comes twice.

    Args:
        layer: Which layer, from 0.
        length: Tokens.

    Raises:
        Unable: There is no transformers, no MiniLM, or no text.
        WrongInput: There is no such layer, the text is shorter, or MiniLM's folder is damaged.
    """
    text = _text()
    require("transformers")
    opened = source(str(demo_models.ready(demo_models.MINILM)))
    count = opened.config.num_hidden_layers
    if layer >= count:
        raise WrongInput(f"--layer {layer} is not there: {opened.name} has layers 0 to {count - 1}")
    passages = _passages(opened, text, length)
    model = encoder(opened)
    with waiting(f"Reading {length:,} tokens"), _recorded(model, layer) as seen:
        with torch.no_grad():
            for first in range(0, len(passages), _TOGETHER):
                model(input_ids=passages[first : first + _TOGETHER])
        heads = opened.config.num_attention_heads
        return States(*(_joined(parts, heads, length) for parts in seen))


def _text() -> str:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise Unable(
            "this Python comes without pydoc_data, the text that would be read; "
            "most packages of Python's standard library have it"
        ) from None
    return "\n".join(topics.values())


def _passages(opened: Source, text: str, length: int) -> Tensor:
    """Cut a text into as many full passages as make up ``length`` tokens, (passages, tokens)."""
    room = min(opened.context or PASSAGE, PASSAGE)
    cut = opened.tokenizer(text, truncation=True, max_length=room, return_overflowing_tokens=True)
    whole = [passage for passage in cut["input_ids"] if len(passage) == room]
    count = -(-length // room)
    if count > len(whole):
        raise WrongInput(
            f"{length:,} tokens are too many: the text has {len(whole) * room:,}; "
            "ask for fewer by --max-length or --lengths"
        )
    return torch.tensor(whole[:count])


@contextmanager
def _recorded(model: Any, layer: int) -> Iterator[tuple[list[Tensor], list[Tensor], list[Tensor]]]:
    """Keep what a layer's maps of queries, keys and values give while the block runs."""
    seen: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    inner = model.encoder.layer[layer].attention.self
    hooks = [
        part.register_forward_hook(lambda *call, kept=kept: kept.append(call[2]))
        for part, kept in zip((inner.query, inner.key, inner.value), seen, strict=True)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _joined(parts: list[Tensor], heads: int, length: int) -> Tensor:
    """Put passages one after the other: (1, heads, tokens, head_dim)."""
    tokens = torch.cat(parts).flatten(0, 1)[:length]
    return tokens.reshape(1, length, heads, -1).transpose(1, 2).contiguous()

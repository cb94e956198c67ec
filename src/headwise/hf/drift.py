"""Measures how far another attention moves the hidden states of a trained model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.errors import BackendRefused
from headwise.hf.conversion.converted import conversions, paused
from headwise.hf.requirement import require_transformers

# The hidden states in an output, and what to call them.
_STATES = {
    "hidden_states": "",
    "encoder_hidden_states": "encoder ",
    "decoder_hidden_states": "decoder ",
}


class DriftRow(NamedTuple):
    """How far one kind of states moved.

    Attributes:
        name: ``"embeddings"``, ``"layer 0"`` and so on, ``"logits"``.
        distance: Norm of the difference, relative to the norm of the states, over all real tokens.
        cosine: Cosine of a token's states with and without conversion, the mean over real tokens.
        pooled: The same of a sample's mean over its real tokens, the mean over samples: what
            becomes of sentence vectors.
    """

    name: str
    distance: float
    cosine: float
    pooled: float


@dataclass(frozen=True)
class Drift:
    """How far conversion moved the states of a model, layer by layer.

    Attributes:
        model: Name of its class.
        rows: The embeddings, every layer, and the logits where there are some.
        tokens: Real tokens that were measured; of an encoder-decoder model those of the encoder.
    """

    model: str
    rows: tuple[DriftRow, ...]
    tokens: int

    def __iter__(self) -> Iterator[DriftRow]:
        return iter(self.rows)

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [
            f"{self.model}: converted, against its own softmax attention, {self.tokens:,} tokens",
            f"  {'':{width}}  distance  cosine  pooled",
        ]
        lines += [
            f"  {row.name:{width}}  {row.distance:8.4f}  {row.cosine:6.3f}  {row.pooled:6.3f}"
            for row in self.rows
        ]
        return "\n".join(lines)


def drift(model: nn.Module, inputs: Tensor | Mapping[str, Any]) -> Drift:
    """Compare a converted model with the same weights under softmax attention.

    Both passes run in evaluation mode and without gradients; the model is left as it was. Tokens
    that ``attention_mask`` (``decoder_attention_mask`` in a decoder with a source) calls padding
    are left out; where it has another length than the states, all count.

    Args:
        model: What ``headwise.hf.convert`` returned.
        inputs: What the model takes by name, as a tokenizer returns it, or token numbers
            (batch, length).

    Returns:
        A ``Drift``, whose ``str`` reads well. The first rows of layers say little: an error of
        one layer passes through all that follow.

    Raises:
        BackendRefused: A model of which nothing is converted.
        TypeError: Something that is no model of transformers, or inputs that have no names.

    Example:
        >>> import headwise as hw, torch
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(
        ...     hidden_size=8, num_attention_heads=2, num_hidden_layers=2, intermediate_size=16
        ... )
        >>> model = hw.hf.convert(BertModel(config), hw.Window(2, 2))
        >>> found = hw.hf.drift(model, torch.randint(5, 99, (2, 30)))
        >>> [row.name for row in found.rows]
        ['embeddings', 'layer 0', 'layer 1']
        >>> found.rows[0].distance, found.rows[2].distance > 0
        (0.0, True)
    """
    require_transformers()
    given = {**_named(model, inputs), "output_hidden_states": True, "return_dict": True}
    if not any(conversions(model)):
        raise BackendRefused(
            f"drift: nothing in {type(model).__name__} is converted, so nothing can have moved\n"
            "  hint: headwise.hf.convert(model, …) first"
        )
    modes = {part: part.training for part in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            converted = model(**given)
            with paused(model):
                plain = model(**given)
    finally:
        for part, training in modes.items():
            part.training = training
    before, after = dict(_states(plain)), dict(_states(converted))
    rows, tokens = [], 0
    for name, states in before.items():
        real = _real(name, states, given)
        rows.append(_row(name, after[name], states, real))
        tokens = tokens or int(real.sum())
    return Drift(type(model).__name__, tuple(rows), tokens)


def _named(model: nn.Module, inputs: Tensor | Mapping[str, Any]) -> dict[str, Any]:
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"drift: model must be a model of transformers, got {type(model).__name__}\n"
            "  hint: of a sentence-transformers model it is model[0].auto_model"
        )
    if isinstance(inputs, Tensor):
        return {model.main_input_name: inputs}
    if not isinstance(inputs, Mapping):
        raise TypeError(
            f"drift: inputs must be what the model takes by name, got {type(inputs).__name__}\n"
            "  hint: tokenizer(texts, padding=True, return_tensors='pt')"
        )
    return dict(inputs)


def _states(output: Any) -> Iterator[tuple[str, Tensor]]:
    for key, prefix in _STATES.items():
        for number, states in enumerate(output.get(key) or ()):
            yield f"{prefix}layer {number - 1}" if number else f"{prefix}embeddings", states
    if output.get("logits") is not None:
        yield "logits", output.logits


def _real(name: str, states: Tensor, given: Mapping[str, Any]) -> Tensor:
    """Say which of the states are of real tokens, (batch, length)."""
    decodes = name.startswith("decoder") or (name == "logits" and "decoder_input_ids" in given)
    mask = given.get("decoder_attention_mask" if decodes else "attention_mask")
    size = states.shape[:2] if states.ndim > 2 else (states.shape[0], 1)
    if mask is None or mask.shape != size:
        return torch.ones(size, dtype=torch.bool, device=states.device)
    real: Tensor = mask.bool().to(states.device)
    return real


def _row(name: str, found: Tensor, wanted: Tensor, real: Tensor) -> DriftRow:
    found, wanted = (
        states.float().reshape(*real.shape, -1).masked_fill(~real.unsqueeze(-1), 0.0)
        for states in (found, wanted)
    )
    distance = (found - wanted).norm() / wanted.norm()
    cosine = nn.functional.cosine_similarity(found[real], wanted[real], dim=-1).mean()
    samples = real.any(1)
    pooled = nn.functional.cosine_similarity(
        found[samples].sum(1), wanted[samples].sum(1), dim=-1
    ).mean()
    return DriftRow(name, distance.item(), cosine.item(), pooled.item())

"""Tiny transformers models with random weights: the same one with several attentions."""

from typing import Any

import torch
import transformers
from torch import Tensor

from headwise import hf
from tests.support.hf_families import DECODERS, ENCODERS, FAMILIES, LEFT, PAIRS, VOCAB, Family

__all__ = [
    "DECODERS",
    "ENCODERS",
    "FAMILIES",
    "LEFT",
    "PAIRS",
    "VOCAB",
    "Family",
    "answer",
    "at_real_tokens",
    "both",
    "inputs",
    "padded",
    "tiny",
    "tokens",
    "with_dropout",
    "without_dropout",
]


def tiny(name: str, implementation: str = "headwise", **changes: Any) -> Any:
    """Build a model of a family in evaluation mode; the same weights for every implementation.

    ``"headwise"`` is the model through headwise, in the way that its family takes.
    """
    hf.register()
    family = _family(name)
    accelerated = implementation == "headwise" and family.through != "headwise"
    config = getattr(transformers, family.config)(**{**family.numbers, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = getattr(transformers, family.auto).from_config(
            config,
            attn_implementation="eager" if accelerated else implementation,
            experts_implementation="eager",
        )
        for weight in model.parameters():
            if weight.ndim > 1 or not weight.any():
                torch.nn.init.normal_(weight, std=0.3)
    if accelerated:
        hf.accelerate(model)
    return model.eval()


def both(name: str, **changes: Any) -> tuple[Any, Any]:
    """Return the model through headwise, and through transformers' own eager attention."""
    return tiny(name, **changes), tiny(name, "eager", **changes)


def tokens(batch: int = 2, length: int = 11, seed: int = 3) -> Tensor:
    """Return token numbers that are no special ones."""
    return torch.randint(3, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(side: str, batch: int = 2, length: int = 11, padding: int = 4) -> Tensor:
    """Return a mask with all tokens real in the first sample, and padding in the last one."""
    mask = torch.ones(batch, length, dtype=torch.long)
    if side == "left":
        mask[-1, :padding] = 0
    if side == "right":
        mask[-1, length - padding :] = 0
    return mask


def inputs(name: str, side: str = "none") -> dict[str, Tensor]:
    """Return what a forward pass of the family takes."""
    kind = _family(name).kind
    if kind == "image":
        return {"pixel_values": torch.randn(2, 3, 8, 8)}
    if kind == "speech":
        return {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": tokens(length=5)}
    given = {"input_ids": tokens(), "attention_mask": padded(side)}
    if kind == "pair":
        given["decoder_input_ids"] = tokens(length=5, seed=4)
    return given


def answer(model: Any, given: dict[str, Tensor]) -> Tensor:
    """Return the logits of a forward pass, or the last hidden state where there are none."""
    out = model(**given)
    found: Tensor = out.logits if hasattr(out, "logits") else out.last_hidden_state
    return found


def at_real_tokens(found: Tensor, given: dict[str, Tensor], name: str) -> Tensor:
    """Leave out the answers at padding, in a model that answers at every token it reads."""
    if name not in ENCODERS + DECODERS or "attention_mask" not in given:
        return found.flatten(0, 1)
    return found[given["attention_mask"].bool()]


def with_dropout(model: Any, chance: float) -> Any:
    """Put a model in training mode with one chance everywhere."""
    for part in model.train().modules():
        for name, value in list(vars(part).items()):
            if "drop" in name and isinstance(value, float):
                setattr(part, name, chance)
        if isinstance(part, torch.nn.Dropout):
            part.p = chance
    return model


def without_dropout(model: Any) -> Any:
    """Put a model in training mode without dropout."""
    return with_dropout(model, 0.0)


def _family(name: str) -> Family:
    return FAMILIES[name] if name in FAMILIES else LEFT[name]

"""Makes a loaded model faster, or another one, as the options of a command say, and tells of it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import headwise.hf
from headwise.cli.attention_words import AttentionWords, Place
from headwise.cli.failures import WrongInput, one_line

_CALLERS = ("convert", "hf.convert", "accelerate", "hf.accelerate")


@dataclass(frozen=True)
class Change:
    """Other attention for a model.

    Attributes:
        attention: What it gets.
        part: What gets it: the model, or the encoder of one.
        given: What that part will be given, or the longest of it.
        causal: Whether the part hides later tokens from earlier ones.
        tokens: The most tokens that it will read at once.
        measured: Whether to compute how far its answers move.
    """

    attention: AttentionWords
    part: Any
    given: Mapping[str, Tensor]
    causal: bool
    tokens: int
    measured: bool


@dataclass(frozen=True)
class Prepared:
    """What was done to a model.

    Attributes:
        accelerated: Whether ``headwise.hf.accelerate`` went over it.
        attention: The attention that it was given, as it was typed; ``None`` = its own.
        moved: How far its answers moved by that; ``None`` = not asked, or not changed.
        report: What is served and accelerated, and what is left.
    """

    accelerated: bool
    attention: str | None
    moved: Any
    report: Any

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "accelerated": self.accelerated,
            "attention": self.attention,
            "attention_modules": len(self.report),
            "attention_modules_served": sum(row.served for row in self.report),
            "other_layers": list(self.report.layers),
            "drift": None if self.moved is None else [row._asdict() for row in self.moved.rows],
        }

    def tell(self) -> None:
        """Print on stderr what is served and what is not, and how far answers moved."""
        print(self.report, file=sys.stderr)
        if self.moved is not None:
            print(self.moved, file=sys.stderr)


def prepare(
    model: Any,
    *,
    command: str,
    accelerate: bool,
    unpad: bool = False,
    change: Change | None = None,
) -> Prepared:
    """Accelerate a model and give it other attention; in place.

    What is left of a model that was to be accelerated is told on stderr, and so is what has to be
    known of the new attention.

    Args:
        model: A model of transformers.
        command: Who speaks on stderr.
        accelerate: Whether to accelerate it.
        unpad: Whether it then runs padded batches packed.
        change: The attention that it gets; ``None`` = it keeps its own.

    Raises:
        WrongInput: The attention does not fit the model.
    """
    if accelerate:
        headwise.hf.accelerate(model, unpad=unpad)
        for line in str(headwise.hf.report(model)).splitlines():
            if line.startswith("  left"):
                print(f"headwise {command}: not accelerated: {line[6:].strip()}", file=sys.stderr)
    moved = None
    if change is not None:
        _convert(change)
        said, note = change.attention.text, change.attention.note
        if note:
            print(f"headwise {command}: --attention {said}: {note}", file=sys.stderr)
        if change.measured:
            moved = headwise.hf.drift(change.part, change.given)
    attention = None if change is None else change.attention.text
    return Prepared(accelerate, attention, moved, headwise.hf.report(model))


def _convert(change: Change) -> None:
    attention, part = change.attention, change.part
    try:
        headwise.hf.convert(
            part, lambda layer: attention.build(Place(change.causal, change.tokens, layer))
        )
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as refusal:
        raise WrongInput(
            f"--attention {attention.text!r} does not fit {type(part).__name__}: "
            f"{one_line(refusal, *_CALLERS)}"
        ) from refusal

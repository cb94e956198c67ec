"""What stands in an attention module of a model in place of its own attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwise.errors import BackendRefused, PatternError
from headwise.hf.pattern_mask import PatternMask
from headwise.nn.mechanism import Mechanism
from headwise.patterns import Pattern
from headwise.patterns.wording import pattern_name

# The name of the part in the module, and so in the names of its tensors.
PART = "headwise"
# What a loaded module was when it was saved, until it is that again.
WAITING = "_headwise_waiting"

Replacement = Pattern | Mechanism


class Converted(nn.Module):
    """A pattern or a mechanism, as a part of the attention module that it serves.

    Args:
        replacement: The pattern or the mechanism.
        slides: Whether the module sees a part of the tokens only, so that a cache may keep no more.
        drops: Whether the mechanism can drop weights in training.
    """

    def __init__(self, replacement: Replacement, *, slides: bool, drops: bool) -> None:
        super().__init__()
        self.pattern = replacement if isinstance(replacement, Pattern) else None
        self.mechanism: Any = None if self.pattern is replacement else replacement
        self.slides, self.drops = slides, drops
        self.paused = False
        self.without_weights = False

    def described(self) -> str:
        """Say what it is, in a line."""
        return described(self.mechanism if self.pattern is None else self.pattern)

    def check_places(self, given: Tensor | None, kind: str, q_len: int, kv_len: int) -> None:
        """Refuse a call in which nobody knows where the queries stand among the keys.

        Args:
            given: The mask of the call.
            kind: Name of the class of the module.
            q_len: Number of queries.
            kv_len: Number of keys.

        Raises:
            PatternError: Fewer queries than keys and a plain mask that hides the last key, or that
                is of a layer whose cache may have dropped keys.
        """
        if given is None or q_len == kv_len or isinstance(given, PatternMask):
            return
        last = given[..., -1, -1]
        seen = last > torch.finfo(last.dtype).min / 2 if last.is_floating_point() else last
        moved = self.slides and not (self.pattern is not None and self.pattern.shift_invariant)
        if moved or not bool(seen.any()):
            raise PatternError(
                f"attn_implementation='headwise': {kind} attends by {self.described()}, which "
                f"needs to know where the queries stand, got {q_len} queries, {kv_len} keys and a "
                "mask that does not say\n"
                "  hint: give the model a 2-D attention_mask and a cache that grows, "
                "headwise.hf.Cache() or transformers' DynamicCache"
            )

    @override
    def extra_repr(self) -> str:
        return self.described() if not isinstance(self.mechanism, nn.Module) else ""

    @override
    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)
        if any(name.startswith(prefix) for name in state_dict):
            self.without_weights = False


def conversion_of(module: nn.Module) -> Converted | None:
    """Return what stands in place of a module's own attention, if anything does.

    Raises:
        BackendRefused: A module that was something else when it was saved.
    """
    waiting = vars(module).get(WAITING)
    if waiting is not None:
        raise BackendRefused(
            f"attn_implementation='headwise': {type(module).__name__} was saved with the attention "
            f"{waiting['attention']}, and has its own softmax attention now\n"
            "  hint: headwise.hf.convert(model, …) as before it was saved, or "
            "headwise.hf.restore(model) to go on with softmax attention"
        )
    found = module._modules.get(PART)
    if not isinstance(found, Converted) or found.paused:
        return None
    if found.without_weights:
        raise BackendRefused(
            f"attn_implementation='headwise': {type(module).__name__} was saved with tensors of "
            f"its attention, and those of {found.described()} are new ones\n"
            "  hint: model.load_state_dict(safetensors.torch.load_file(file), strict=False) with "
            "the file of weights; or headwise.hf.restore(model) and convert it again, to train "
            "them anew"
        )
    return found


def is_waiting(module: nn.Module) -> bool:
    """Say whether a module was something else when it was saved, and is not that again."""
    return WAITING in vars(module)


def about_conversion(module: nn.Module) -> str:
    """Say for a report what stands in place of a module's own attention; empty = nothing."""
    waiting = vars(module).get(WAITING)
    if waiting is not None:
        return f"was saved converted to {waiting['attention']}, and is not converted"
    found = module._modules.get(PART)
    return f"converted to {found.described()}" if isinstance(found, Converted) else ""


def described(replacement: object) -> str:
    """Say what a pattern or a mechanism is, in a line."""
    if isinstance(replacement, Pattern):
        return pattern_name(replacement)
    inner = replacement.extra_repr() if isinstance(replacement, nn.Module) else ""
    text = (
        f"{type(replacement).__name__}({inner})" if inner else " ".join(repr(replacement).split())
    )
    return text if len(text) <= 100 else f"{text[:97]}..."


def conversions(model: nn.Module) -> Iterator[Converted]:
    """Return every part of this kind in a model."""
    return (part for part in model.modules() if isinstance(part, Converted))


@contextmanager
def paused(model: nn.Module) -> Iterator[None]:
    """Let every module attend by softmax, as its own code does, while the block runs."""
    parts = [part for part in conversions(model) if not part.paused]
    try:
        for part in parts:
            part.paused = True
        yield
    finally:
        for part in parts:
            part.paused = False

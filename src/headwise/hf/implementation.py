"""Sends the attention of transformers models through headwise, and back."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakSet

from torch import nn

from headwise.hf.accelerated.swap import is_fast
from headwise.hf.families import masks_made_by, mixes_tokens_itself, own_attention
from headwise.hf.register import own_attention_known, register

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = "headwise"
_BEFORE = "_headwise_implementation_before"
# Models that were sent through headwise; some may share a configuration.
_sent: "WeakSet[PreTrainedModel]" = WeakSet()


def choose_headwise(model: nn.Module) -> None:
    """Let every transformers model inside use headwise where its attention can be sent there.

    A model that holds one whose attention cannot is left itself; others that it holds are not,
    unless they share its configuration, by which both choose their masks.
    """
    done: set[nn.Module] = set()
    left = kept_configs(model)
    for part in _models(model):
        inside = list(_models(part))
        if part in done or any(id(one.config) in left for one in inside):
            continue
        done.update(inside)
        _sent.update(inside)
        before = [one.config._attn_implementation for one in inside]
        if all(name == _NAME for name in before):
            continue
        register()
        with own_attention_known():
            part.set_attn_implementation(_NAME)
        for one, name in zip(inside, before, strict=True):
            if one.config._attn_implementation == _NAME != name:
                setattr(one, _BEFORE, name)


def choose_as_before(model: nn.Module) -> None:
    """Give every model inside the implementation that it had.

    Where another model shares its configuration and is still sent through headwise, that one gives
    it back in its turn.
    """
    parts = list(_models(model))
    _sent.difference_update(parts)
    for part in parts:
        before = vars(part).pop(_BEFORE, None)
        if before is None:
            continue
        heir = next((other for other in _sent if _needs_config_of(part, other)), None)
        if heir is None:
            part.set_attn_implementation(before)
        else:
            vars(heir).setdefault(_BEFORE, before)


def _needs_config_of(part: "PreTrainedModel", other: "PreTrainedModel") -> bool:
    """Say whether another model, not one around the part, shares its configuration."""
    return other.config is part.config and part not in set(other.modules())


def kept_configs(model: nn.Module) -> set[int]:
    """Return the identities of configurations whose implementation must stay as it is."""
    return {id(one.config) for one in _models(model) if not _can_be_sent(one)}


def _can_be_sent(model: nn.Module) -> bool:
    """Say whether no attention of its own would be given masks that were made for headwise."""
    makers = [one for one in _models(model) if masks_made_by(type(one)) != "none"]
    if any(own_attention(sys.modules[type(one).__module__]) for one in _models(model)):
        return False
    inside = (part for maker in makers for part in maker.modules())
    return not any(mixes_tokens_itself(type(part)) and not is_fast(part) for part in inside)


def _models(model: nn.Module) -> "Iterator[PreTrainedModel]":
    """Return the transformers models inside, an outer one before those that it holds."""
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        for part in model.modules():
            if isinstance(part, transformers.PreTrainedModel):
                yield part

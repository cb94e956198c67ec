"""Sends the attention of transformers models through headwise, and back."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

from headwise.hf.families import own_attention
from headwise.hf.register import register

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BEFORE = "_headwise_implementation_before"


def choose_headwise(model: nn.Module) -> None:
    """Let every transformers model inside use headwise where its attention can be sent there."""
    for part in list(_models(model)):
        before = part.config._attn_implementation
        if before == "headwise" or own_attention(sys.modules[type(part).__module__]):
            continue
        register()
        part.set_attn_implementation("headwise")
        setattr(part, _BEFORE, before)


def choose_as_before(model: nn.Module) -> None:
    """Give every model inside the implementation that it had."""
    for part in list(_models(model)):
        before = part.__dict__.pop(_BEFORE, None)
        if before is not None:
            part.set_attn_implementation(before)


def _models(model: nn.Module) -> "Iterator[PreTrainedModel]":
    """Return the transformers models inside that stand in no other one."""
    transformers = sys.modules.get("transformers")
    if transformers is None:
        return
    inside: set[nn.Module] = set()
    for part in model.modules():
        if part not in inside and isinstance(part, transformers.PreTrainedModel):
            inside.update(part.modules())
            yield part

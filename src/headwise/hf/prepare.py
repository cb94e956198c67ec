"""The mask function that transformers calls, once per forward pass and kind of layer."""

import torch
from torch import Tensor

from headwise.hf.asked import Asked
from headwise.hf.families import refuse_config, wholly_served
from headwise.hf.masks import MaskFunction, needed, padding, pattern_of
from headwise.hf.pattern_mask import PatternMask
from headwise.patterns import Causal, Pattern


@torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
    reason="headwise reads the mask functions of transformers as they are"
)
def mask(  # noqa: PLR0913
    batch_size: int,
    q_length: int,
    kv_length: int,
    *,
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    config: object = None,
    **_: object,
) -> Tensor:
    """Make the mask of one forward pass; registered with transformers under ``"headwise"``.

    Arguments are those of transformers' mask functions; ``dtype``, ``local_size`` and
    the permissions to return no mask at all say nothing about who may attend to whom and are taken
    and left: a module that finds no mask would have to guess whether it is causal.

    Returns:
        A ``PatternMask``. One query on an accelerator gets a boolean tensor, since transformers
        compiles that step.

    Raises:
        BackendRefused: A model that attends by its own code.
        ShapeError: A padding mask that is not (batch, keys).
    """
    refuse_config(config)
    asked = Asked(
        batch_size,
        q_length,
        kv_length,
        int(q_offset),
        int(kv_offset),
        use_vmap,
        torch.device(device),
    )
    pattern: Pattern = Causal() if mask_function is None else pattern_of(mask_function, asked)
    pattern = needed(pattern, asked)
    if attention_mask is not None:
        pattern = (pattern & padding(attention_mask, asked)).simplified()
    note = ", ".join(asked.unknown)
    made = PatternMask(
        pattern,
        (batch_size, q_length, kv_length),
        asked.q_offset,
        asked.kv_offset,
        asked.device,
        f"spelled out densely, for this is not known: {note}" if note else None,
        str(getattr(config, "model_type", "the model")),
    )
    compiled = asked.device.type != "cpu" and q_length == 1 and wholly_served(config)
    return made.spelled() if compiled else made

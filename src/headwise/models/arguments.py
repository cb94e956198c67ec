"""What models refuse, and in which words."""

from typing import NoReturn

import torch
from torch import Tensor

from headwise.errors import CacheError, ShapeError
from headwise.models.cache import Cache
from headwise.models.configuration import HeadwiseConfig


def check_config(model: str, config: object) -> None:
    """Refuse a configuration of other models, and settle one of ours.

    Raises:
        TypeError: It is no ``HeadwiseConfig``; otherwise as ``HeadwiseConfig``.
    """
    if not isinstance(config, HeadwiseConfig):
        raise TypeError(
            f"{model}: config must be a HeadwiseConfig, got {type(config).__name__}\n"
            "  hint: headwise.models.from_transformers(model) takes models of transformers over"
        )
    config.settle()


def check_kind(model: str, config: HeadwiseConfig, *kinds: str) -> None:
    """Refuse a configuration of another kind of model."""
    if config.kind not in kinds:
        heads = {
            "encoder": "HeadwiseForMaskedLM",
            "decoder": "HeadwiseForCausalLM",
            "encoder_decoder": "HeadwiseForSeq2SeqLM",
        }
        raise ValueError(
            f"{model}: config.kind must be {' or '.join(map(repr, kinds))}, got {config.kind!r}\n"
            f"  hint: {heads[config.kind]} is for {config.kind!r}"
        )


def check_cache(cache: object) -> None:
    """Refuse a cache that the layers of these models cannot store in."""
    if cache is not None and not isinstance(cache, Cache):
        raise CacheError(
            f"HeadwiseModel: cache must be a headwise.models.Cache, got {type(cache).__name__}\n"
            "  hint: leave cache out, or say how tokens are kept: "
            "headwise.models.Cache(headwise.KVCache(dtype=torch.int8))"
        )


def refuse_implementation(name: str) -> NoReturn:
    """Refuse a name of a cache of transformers."""
    raise CacheError(
        f"generate: cache_implementation={name!r} names a cache of transformers, and the layers of "
        "these models store in a headwise.KVCache\n"
        "  hint: cache=headwise.models.Cache(headwise.KVCache(capacity=…, window=…, dtype=…))"
    )


def check_one_input(
    input_ids: Tensor | None, inputs_embeds: Tensor | None, stack: str, width: int
) -> None:
    """Refuse a call without tokens, with two kinds of them, or with vectors of another form."""
    of_two = stack == "decoder of two"
    prefix = "decoder_" if of_two else ""
    if (input_ids is None) == (inputs_embeds is None):
        got = "neither" if input_ids is None else "both"
        way = ", or labels, or what DataCollatorForSeq2Seq(tokenizer, model=model) makes of them"
        raise TypeError(
            f"HeadwiseModel: one of {prefix}input_ids and {prefix}inputs_embeds is needed, "
            f"got {got}\n  hint: pass the token numbers as {prefix}input_ids{way if of_two else ''}"
        )
    if inputs_embeds is not None and (inputs_embeds.ndim, inputs_embeds.shape[-1]) != (3, width):
        raise ShapeError(
            f"HeadwiseModel: {prefix}inputs_embeds must be (batch, length, {width}), "
            f"got {tuple(inputs_embeds.shape)}\n  hint: give one sample a dimension with x[None]"
        )


def check_ids(input_ids: Tensor) -> None:
    """Refuse what is no batch of token numbers."""
    if input_ids.ndim != 2 or input_ids.dtype not in (torch.int32, torch.int64):
        raise ShapeError(
            "HeadwiseModel: token numbers must be (batch, length) of torch.int64 or torch.int32, "
            f"got {tuple(input_ids.shape)} of {input_ids.dtype}\n"
            "  hint: ids[None] makes a batch of one text; vectors are inputs_embeds"
        )


def refuse_unread(hint: str, **given: object) -> None:
    """Refuse arguments that nothing would read."""
    unread = [name for name, value in given.items() if value is not None]
    if unread:
        raise TypeError(
            f"HeadwiseModel: there is nothing that reads {', '.join(unread)}\n  hint: {hint}"
        )


def refuse_kept(labels: Tensor | None) -> None:
    """Refuse labels of places that are not scored."""
    if labels is not None:
        raise TypeError(
            "HeadwiseForCausalLM: labels are of all places, and logits_to_keep leaves some out\n"
            "  hint: leave logits_to_keep out where there are labels"
        )

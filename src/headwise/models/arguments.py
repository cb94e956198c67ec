"""What models refuse, and in which words."""

from typing import NoReturn

from torch import Tensor

from headwise.errors import CacheError
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


def check_one_input(input_ids: Tensor | None, inputs_embeds: Tensor | None, stack: str) -> None:
    """Refuse a call without tokens, or with two kinds of them."""
    if (input_ids is None) == (inputs_embeds is None):
        prefix = "decoder_" if stack == "decoder of two" else ""
        got = "neither" if input_ids is None else "both"
        raise TypeError(
            f"HeadwiseModel: one of {prefix}input_ids and {prefix}inputs_embeds is needed, "
            f"got {got}\n  hint: pass the token numbers as {prefix}input_ids"
        )


def refuse_unread(reason: str, **given: object) -> None:
    """Refuse arguments that nothing would read."""
    unread = [name for name, value in given.items() if value is not None]
    if unread:
        raise TypeError(
            f"HeadwiseModel: there is nothing that reads {', '.join(unread)}\n"
            f"  hint: the configuration has {reason}"
        )


def refuse_kept(labels: Tensor | None) -> None:
    """Refuse labels of places that are not scored."""
    if labels is not None:
        raise TypeError(
            "HeadwiseForCausalLM: labels are of all places, and logits_to_keep leaves some out\n"
            "  hint: leave logits_to_keep out where there are labels"
        )

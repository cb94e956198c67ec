"""What layers refuse, and in which words."""

from collections.abc import Mapping

from torch import Tensor

from headwise._checks import refuse_shapes
from headwise.cache import KVCache
from headwise.errors import CacheError, ShapeError

_RENAMED = {
    "Q": "query=",
    "K": "key=",
    "V": "value=",
    "key_padding_mask": "kv_mask= (True = real token, so turn it round with ~)",
    "attn_mask": "mask= (True = may attend) or bias= (numbers added to the scores)",
    "is_causal": "pattern=headwise.Causal()",
    "need_weights": "headwise.attention_weights, with the q and k of layer.project(…)",
    "average_attn_weights": "headwise.attention_weights, with the q and k of layer.project(…)",
}


def check_sizes(**sizes: int | None) -> None:
    """Refuse sizes below 1, and numbers of heads that do not divide."""
    wrong = {name: size for name, size in sizes.items() if size is not None and size < 1}
    if wrong:
        listed = ", ".join(f"{name}={size}" for name, size in wrong.items())
        raise ShapeError(f"MultiHeadAttention: sizes must be at least 1, got {listed}")
    d_model, num_heads, num_kv_heads = (
        sizes[name] or 1 for name in ("d_model", "num_heads", "num_kv_heads")
    )
    if sizes["head_dim"] is None and d_model % num_heads:
        raise ShapeError(
            f"MultiHeadAttention: num_heads must divide d_model, got {num_heads} and {d_model}\n"
            "  hint: choose another number of heads, or give head_dim"
        )
    if num_heads % num_kv_heads:
        raise ShapeError(
            "MultiHeadAttention: num_kv_heads must divide num_heads, "
            f"got {num_kv_heads} and {num_heads}\n"
            "  hint: 1 is multi-query attention, num_heads is plain multi-head attention"
        )


def check_inputs(widths: tuple[int, ...], query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse inputs of other widths, or with a batch dimension in some of them only."""
    given = (query.shape[-1], key.shape[-1], value.shape[-1])
    if given != widths or not 2 <= query.ndim == key.ndim == value.ndim <= 3:
        raise refuse_shapes(
            "MultiHeadAttention",
            f"inputs must be (batch, length, width) with widths {widths}, got {given}",
            "query has d_model, key and value have kv_dim; leave out the batch in all or none",
            query=query,
            key=key,
            value=value,
        )


def check_dropout(caller: str, dropout: float) -> None:
    """Refuse a dropout that is no share."""
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(
            f"{caller}: dropout must lie between 0 and 1, got {dropout}\n"
            "  hint: dropout is the share of numbers set to zero in training"
        )


def check_cache(cache: KVCache, key: Tensor | None) -> None:
    """Refuse what is no cache of headwise, and a cache for cross attention."""
    if not isinstance(cache, KVCache):
        raise TypeError(
            "MultiHeadAttention: cache must be a headwise.KVCache, "
            f"got {type(cache).__name__}\n"
            "  hint: headwise.hf.Cache is for models of transformers, and its store is a KVCache"
        )
    if key is not None:
        raise CacheError(
            "MultiHeadAttention: cache serves self-attention, and key was given\n"
            "  hint: for cross attention store layer.project(x, memory)[1:] once with "
            "cache.append, then call cache.attend(q, pattern=None)"
        )


def refuse_override(cls: type) -> None:
    """Refuse a subclass that overrides a step which is not called."""
    if hasattr(cls, "scaled_dot_product_attention"):
        raise TypeError(
            f"{cls.__name__}: scaled_dot_product_attention is not called by MultiHeadAttention, "
            "so overriding it would change nothing\n"
            "  hint: override forward, or pass pattern=, bias= or mask= instead"
        )


def refuse_arguments(names: Mapping[str, object]) -> TypeError:
    """Word the refusal of arguments that have another name here, or of a missing query."""
    if not names:
        return TypeError("MultiHeadAttention.forward: query is missing")
    known = "\n".join(
        f"  hint: instead of {name} use {_RENAMED[name]}" for name in names if name in _RENAMED
    )
    listed = ", ".join(names)
    return TypeError(f"MultiHeadAttention.forward: there is no argument {listed}\n{known}".rstrip())

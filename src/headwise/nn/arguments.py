"""What layers refuse, and in which words."""

from collections.abc import Mapping

from torch import Tensor

from headwise._checks import is_int, refuse_shapes
from headwise.cache import KVCache
from headwise.errors import CacheError, ShapeError
from headwise.nn.other_names import OF_ATTENTION
from headwise.positions.bases import is_number

_FLAGS = {
    "bias": "it says whether linear maps have a bias; numbers added to the scores go into a call",
    "qk_norm": "True is RMSNorm per head; another norm can take the place of q_norm and k_norm",
    "sinks": "True gives every head one score to learn; headwise.attend takes given ones",
    "gated": "True adds W_gate; what stands between the matrices is activation=",
    "norm_first": "True puts norms before the parts, False behind the sums",
    "causal": "True hides what comes after a token",
    "normalize": "True divides the weights of a query by their sum",
}


def check_sizes(**sizes: int | None) -> None:
    """Refuse sizes that are no ints of at least 1, and numbers of heads that do not divide."""
    given = dict(sizes)
    if given["num_kv_heads"] is given["num_heads"]:
        del given["num_kv_heads"]
    check_counts("MultiHeadAttention", **given)
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


def check_counts(caller: str, **sizes: int | None) -> None:
    """Refuse sizes that are no ints of at least 1; ``None`` stands for a default."""
    wrong = {name: size for name, size in sizes.items() if size is not None and not _is_count(size)}
    if wrong:
        listed = ", ".join(f"{name}={size!r}" for name, size in wrong.items())
        raise ShapeError(
            f"{caller}: sizes must be ints of at least 1, got {listed}\n"
            "  hint: sizes count columns or heads; convert a computed one with int(…)"
        )


def check_flags(caller: str, **flags: bool) -> None:
    """Refuse what is neither ``True`` nor ``False`` where one of them is meant."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(
                f"{caller}: {name} must be True or False, got {_shown(flag)}\n"
                f"  hint: {_FLAGS[name]}"
            )


def check_dropout(caller: str, dropout: float) -> None:
    """Refuse a dropout that is no share."""
    if not is_number(dropout) or not 0.0 <= dropout <= 1.0:
        raise ValueError(
            f"{caller}: dropout must lie between 0 and 1, got {_shown(dropout)}\n"
            "  hint: dropout is the share of numbers set to zero in training"
        )


def check_settings(*, dropout: float, softcap: float | None, **flags: bool) -> None:
    """Refuse settings of ``MultiHeadAttention`` that are no numbers, or no flags."""
    check_dropout("MultiHeadAttention", dropout)
    check_flags("MultiHeadAttention", **flags)
    if softcap is not None and not (is_number(softcap) and softcap > 0):
        raise ValueError(
            f"MultiHeadAttention: softcap must be above 0 and finite, got {_shown(softcap)}\n"
            "  hint: leave softcap out for scores without a cap"
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
            "  hint: for cross attention choose a number n that no module of the cache has; store "
            "the memory once, cache.append(*layer.project(x, memory)[1:], layer=n), then "
            "layer.W_o(layer.combine_heads(cache.attend(layer.project(x, memory[:, :1])[0], "
            "layer=n, pattern=layer.pattern, softcap=layer.softcap, sinks=layer.sinks)))"
        )


def check_lengths(q_lengths: object, cache: KVCache | None) -> None:
    """Refuse lengths of rows where nothing is stored."""
    if q_lengths is not None and cache is None:
        raise TypeError(
            "MultiHeadAttention: q_lengths says which tokens a cache stores, and there is none\n"
            "  hint: without a cache, kv_mask= marks padding"
        )


def refuse_override(cls: type) -> None:
    """Refuse a subclass that overrides a step which is not called."""
    if hasattr(cls, "scaled_dot_product_attention"):
        raise TypeError(
            f"{cls.__name__}: scaled_dot_product_attention is not called by MultiHeadAttention, "
            "so overriding it would change nothing\n"
            "  hint: override forward, or pass pattern=, bias= or mask= instead"
        )


def refuse_arguments(
    names: Mapping[str, object],
    layer: str = "MultiHeadAttention",
    first: str = "query",
    called_here: Mapping[str, str] = OF_ATTENTION,
) -> TypeError:
    """Word the refusal of arguments that have another name here, or of a missing first one.

    Args:
        names: The arguments that there are not.
        layer: The class whose ``forward`` was called.
        first: The argument that it always needs.
        called_here: What arguments of other libraries are called in it.
    """
    if not names:
        return TypeError(f"{layer}.forward: {first} is missing\n  hint: pass the tokens as {first}")
    hints = [f"instead of {name} use {called_here[name]}" for name in names if name in called_here]
    hints = hints or [f"help(headwise.nn.{layer}.forward) lists those there are"]
    return TypeError(
        "\n  hint: ".join([f"{layer}.forward: there is no argument {', '.join(names)}", *hints])
    )


def _is_count(size: int) -> bool:
    return is_int(size) and size >= 1


def _shown(given: object) -> str:
    """Return a value as it is written, or the kind of a tensor, whose numbers say nothing."""
    return "a tensor" if isinstance(given, Tensor) else repr(given)

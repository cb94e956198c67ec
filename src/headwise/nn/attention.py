"""Multi-head attention with its projections."""

from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor, nn

from headwise._checks import refuse_shapes
from headwise._dims import Hidden, Key, Memory, Query, Split, Value
from headwise.cache import KVCache
from headwise.errors import CacheError, ShapeError
from headwise.ops import attend
from headwise.ops.softmax.settle_bias import Bias
from headwise.patterns import Dense, KeyMask, Pattern
from headwise.patterns.wording import check_pattern, pattern_name

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


class MultiHeadAttention(nn.Module):
    """Attention with learned projections: ``W_o(attend(W_q(x), W_k(y), W_v(z)))`` per head.

    The layer of "Attention Is All You Need" (Vaswani et al., 2017), with any number of key/value
    heads (grouped-query attention, Ainslie et al., 2023). Self-attention, cross attention, masks,
    patterns and a cache go through one ``forward``.

    Args:
        d_model: Width of the query input and of the output.
        num_heads: Query heads.
        num_kv_heads: Key/value heads, a divisor of ``num_heads``; ``None`` = ``num_heads``, 1 =
            multi-query attention.
        head_dim: Width of a head's queries and keys; ``None`` = ``d_model // num_heads``.
        value_dim: Width of a head's values; ``None`` = ``head_dim``.
        kv_dim: Width of the key and value inputs; ``None`` = ``d_model``.
        bias: Whether the four projections have a bias.
        dropout: Share of attention weights set to zero in training.
        pattern: Who may attend to whom in every call; joined with what a call brings.
        qk_norm: Whether queries and keys are normalised per head (RMSNorm with a weight).
        softcap: Cap of the scores, see ``headwise.attend``.
        sinks: Whether each head learns a sink score, see ``headwise.attend``.
        device: Where the parameters are made.
        dtype: Their dtype.

    Raises:
        ShapeError: Sizes that do not divide or are below 1.

    Example:
        >>> import torch, headwise as hw
        >>> layer = hw.MultiHeadAttention(16, 4, num_kv_heads=2, pattern=hw.Causal())
        >>> layer(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        kv_dim: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        pattern: Pattern | None = None,
        qk_norm: bool = False,
        softcap: float | None = None,
        sinks: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _refuse_override(type(self))
        self.d_model = d_model
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        _check_sizes(
            d_model=d_model,
            num_heads=num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            kv_dim=kv_dim,
        )
        if pattern is not None:
            check_pattern("MultiHeadAttention", pattern)
        if not 0.0 <= dropout <= 1.0:
            raise ValueError(
                f"MultiHeadAttention: dropout must lie between 0 and 1, got {dropout}\n"
                "  hint: dropout is the share of weights set to zero in training"
            )
        self.d_k = d_model // num_heads if head_dim is None else head_dim
        self.kv_dim = d_model if kv_dim is None else kv_dim
        self.value_dim = self.d_k if value_dim is None else value_dim
        self.dropout = dropout
        self.pattern = pattern
        self.softcap = softcap

        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.W_q = nn.Linear(d_model, num_heads * self.d_k, bias, **made)
        self.W_k = nn.Linear(self.kv_dim, self.num_kv_heads * self.d_k, bias, **made)
        self.W_v = nn.Linear(self.kv_dim, self.num_kv_heads * self.value_dim, bias, **made)
        self.W_o = nn.Linear(num_heads * self.value_dim, d_model, bias, **made)
        self.q_norm = nn.RMSNorm(self.d_k, **made) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.d_k, **made) if qk_norm else None
        self.sinks = nn.Parameter(torch.zeros(num_heads, **made)) if sinks else None

    def forward(
        self,
        query: Hidden | None = None,
        key: Memory | None = None,
        value: Memory | None = None,
        mask: Tensor | None = None,
        *,
        kv_mask: Tensor | None = None,
        pattern: Pattern | None = None,
        bias: Bias | None = None,
        q_offset: int | Tensor | None = None,
        cache: KVCache | None = None,
        layer: int | None = None,
        **renamed: object,
    ) -> Hidden:
        """Attend and project.

        Masks and patterns are joined: a pair meets where all of them, and the layer's own pattern,
        allow it. ``True`` = may attend in each.

        Args:
            query: (batch, q_len, d_model); without the batch dimension it is one sample.
            key: (batch, kv_len, kv_dim); ``None`` = ``query``, self-attention.
            value: (batch, kv_len, kv_dim); ``None`` = ``key``.
            mask: (q_len, kv_len), or four dimensions that broadcast to (batch, heads, q_len,
                kv_len); booleans, or numbers that are all 0 or 1. A padding mask is ``kv_mask``.
            kv_mask: (batch, kv_len), ``True`` = real token; cached tokens included.
            pattern: Who may attend to whom in this call.
            bias: Numbers added to the scores, broadcasting to (batch, heads, q_len, kv_len).
            q_offset: Absolute position of the first query; ``None`` = the last query stands
                beside the last key, and behind what is in the cache.
            cache: Where keys and values are appended and read.
            layer: This layer's number in the cache; ``None`` = the cache gives it one.
            renamed: Arguments of other attention layers, refused with their name here.

        Returns:
            (batch, q_len, d_model).

        Raises:
            ShapeError: Sizes that do not fit together.
            PatternError: A mask or pattern that does not fit the call.
            CacheError: A cache with ``key``, or one that refuses; it then is as it was.
            TypeError: An argument that has another name here.
        """
        if renamed or query is None:
            raise _refuse_arguments(renamed)
        if cache is not None and key is not None:
            raise CacheError(
                "MultiHeadAttention: cache serves self-attention, and key was given\n"
                "  hint: for cross attention store layer.project(x, memory)[1:] once with "
                "cache.append, then call cache.attend(q, pattern=None)"
            )
        q, k, v = self.project(query, key, value)
        settings: dict[str, Any] = {
            "bias": bias,
            "softcap": self.softcap,
            "sinks": self.sinks,
            "dropout_p": self.dropout if self.training else 0.0,
            "q_offset": q_offset,
        }
        allowed = self._joined(mask, kv_mask, pattern)
        if cache is None:
            context = attend(q, k, v, allowed, **settings)
        else:
            slot = cache.slot(self, layer)
            context = cache.attend(q, k, v, allowed, layer=slot, **settings)
        output: Tensor = self.W_o(self.combine_heads(context))
        return output

    def project(
        self, query: Hidden, key: Memory | None = None, value: Memory | None = None
    ) -> tuple[Query, Key, Value]:
        """Return queries, keys and values with their heads split, (batch, heads, length, dim)."""
        key = query if key is None else key
        value = key if value is None else value
        self._check_inputs(query, key, value)
        q = self.split_heads(self.W_q(query))
        k = self.split_heads(self.W_k(key))
        v = self.W_v(value)
        v = self.split_heads(v) if self.value_dim == self.d_k else _split(v, self.num_kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k, v

    def split_heads(self, x: Tensor) -> Split:
        """Turn (batch, length, heads * d_k) into (batch, heads, length, d_k)."""
        return _split(x, x.shape[-1] // self.d_k)

    def combine_heads(self, x: Split) -> Tensor:
        """Turn (batch, heads, length, dim) into (batch, length, heads * dim)."""
        return x.transpose(-3, -2).flatten(-2)

    def extra_repr(self) -> str:
        """Return the sizes that the projections do not show."""
        shown = f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, d_k={self.d_k}"
        return shown if self.pattern is None else f"{shown}, pattern={pattern_name(self.pattern)}"

    def _joined(
        self, mask: Tensor | None, kv_mask: Tensor | None, pattern: Pattern | None
    ) -> Pattern | None:
        parts = [part for part in (self.pattern, pattern) if part is not None]
        if kv_mask is not None:
            parts.append(KeyMask(kv_mask))
        if mask is not None:
            parts.append(Dense(mask))
        return reduce(and_, parts) if parts else None

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        widths = (self.d_model, self.kv_dim, self.kv_dim)
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


def _split(x: Tensor, heads: int) -> Split:
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-3, -2)


def _check_sizes(**sizes: int | None) -> None:
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


def _refuse_override(cls: type) -> None:
    if hasattr(cls, "scaled_dot_product_attention"):
        raise TypeError(
            f"{cls.__name__}: scaled_dot_product_attention is not called by MultiHeadAttention, "
            "so overriding it would change nothing\n"
            "  hint: override forward, or pass pattern=, bias= or mask= instead"
        )


def _refuse_arguments(names: Mapping[str, object]) -> TypeError:
    """Word the refusal of arguments that have another name here, or of a missing query."""
    if not names:
        return TypeError("MultiHeadAttention.forward: query is missing")
    known = "\n".join(
        f"  hint: instead of {name} use {_RENAMED[name]}" for name in names if name in _RENAMED
    )
    listed = ", ".join(names)
    return TypeError(f"MultiHeadAttention.forward: there is no argument {listed}\n{known}".rstrip())

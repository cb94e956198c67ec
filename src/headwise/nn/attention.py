"""Multi-head attention with its projections."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headwise._dims import Hidden, Key, Memory, MemoryValue, Query, Split, Value
from headwise._forks import alone_after_fork
from headwise.cache import KVCache, held_tokens
from headwise.nn.arguments import (
    check_cache,
    check_inputs,
    check_lengths,
    check_settings,
    check_sizes,
    refuse_arguments,
    refuse_override,
)
from headwise.nn.heads import joined, normalised, split
from headwise.nn.layer_plan import LayerPlan, plan_layer
from headwise.nn.mechanism import AttentionCall, Mechanism, take_mechanism
from headwise.nn.mixing import mix, mix_cached
from headwise.nn.places import Offset, Places, find_places, longest
from headwise.nn.projection import project
from headwise.nn.schemes import (
    Scheme,
    added_to,
    check_growth,
    check_scheme,
    is_added,
    joined_bias,
    reads_padding,
    turned,
)
from headwise.nn.stand_ins import context_stand_in, projected_stand_ins
from headwise.ops.softmax.settle_bias import Bias
from headwise.patterns import Pattern
from headwise.patterns.wording import check_pattern, pattern_name


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
        positions: Where tokens stand, an object of ``headwise.positions``: ``Rotary`` turns
            queries and keys, ``Alibi`` and ``RelativeBias`` are added to the scores, and
            ``Sinusoidal`` and ``Learned`` to the layer's inputs. ``None`` = the layer does not
            know.
        qk_norm: Whether queries and keys are normalised per head (RMSNorm with a weight).
        softcap: Cap of the scores, see ``headwise.attend``.
        sinks: Whether each head learns a sink score, see ``headwise.attend``.
        mechanism: How tokens are mixed, an object that follows ``headwise.nn.Mechanism``;
            ``None`` = softmax attention.
        device: Where the parameters are made.
        dtype: Their dtype.

    Raises:
        ShapeError: Sizes that do not divide or are below 1, or positions of other sizes.
        TypeError: ``positions`` or ``mechanism`` that is none.

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
        positions: Scheme | None = None,
        qk_norm: bool = False,
        softcap: float | None = None,
        sinks: bool = False,
        mechanism: Mechanism | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        refuse_override(type(self))
        self.d_model = d_model
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_sizes(
            d_model=d_model,
            num_heads=num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            kv_dim=kv_dim,
        )
        if pattern is not None:
            check_pattern("MultiHeadAttention", pattern)
        check_settings(dropout=dropout, softcap=softcap, bias=bias, qk_norm=qk_norm, sinks=sinks)
        self.d_k = d_model // num_heads if head_dim is None else head_dim
        self.kv_dim = d_model if kv_dim is None else kv_dim
        self.value_dim = self.d_k if value_dim is None else value_dim
        self._widths = (d_model, self.kv_dim, self.kv_dim)
        check_scheme(positions, num_heads=num_heads, head_dim=self.d_k, widths=self._widths)
        self.dropout = dropout
        self.pattern = pattern
        self.positions = positions
        self.softcap = softcap
        self.mechanism = take_mechanism(mechanism, self, sinks=sinks)

        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.W_q = nn.Linear(d_model, num_heads * self.d_k, bias, **made)
        self.W_k = nn.Linear(self.kv_dim, self.num_kv_heads * self.d_k, bias, **made)
        self.W_v = nn.Linear(self.kv_dim, self.num_kv_heads * self.value_dim, bias, **made)
        self.W_o = nn.Linear(num_heads * self.value_dim, d_model, bias, **made)
        self.q_norm = nn.RMSNorm(self.d_k, **made) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.d_k, **made) if qk_norm else None
        self.sinks = nn.Parameter(torch.zeros(num_heads, **made)) if sinks else None

    @alone_after_fork
    def forward(
        self,
        query: Hidden | None = None,
        key: Memory | None = None,
        value: MemoryValue | None = None,
        mask: Tensor | None = None,
        *,
        kv_mask: Tensor | None = None,
        pattern: Pattern | None = None,
        bias: Bias | None = None,
        q_offset: int | Tensor | None = None,
        q_lengths: Sequence[int] | Tensor | None = None,
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
            q_offset: Absolute position of the first query, or one for each sample. In
                self-attention its key stands there, too, and what is in the cache right before it.
                ``None`` = the last query stands beside the last key. Padding in front of a sample
                (``kv_mask``) moves no pattern, but positions that are counted from the first
                token, ``Sinusoidal`` and ``Learned``, count from the first real one.
            q_lengths: How many of the tokens are real in each row, (batch,); the others, to the
                right, are not stored in the cache, and their context is zeros. ``None`` = all.
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
            raise refuse_arguments(renamed)
        check_lengths(q_lengths, cache)
        given = (query, key, value, mask, kv_mask, pattern, bias, q_offset)
        if cache is None:
            return self._answer(*given, held=0, mixed=partial(mix, mechanism=self.mechanism))
        check_cache(cache, key)
        with cache.claimed(self, layer) as slot:
            into = partial(
                mix_cached, mechanism=self.mechanism, cache=cache, slot=slot, q_lengths=q_lengths
            )
            return self._answer(*given, held=held_tokens(cache, slot), mixed=into)

    def _answer(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: Tensor | None,
        kv_mask: Tensor | None,
        pattern: Pattern | None,
        bias: Bias | None,
        q_offset: Offset | None,
        *,
        held: Offset,
        mixed: Callable[[AttentionCall], Tensor],
    ) -> Tensor:
        is_self = key is None
        key = query if key is None else key
        value = key if value is None else value
        check_inputs(self._widths, query, key, value)
        places = find_places(
            query,
            key,
            held=held,
            is_self=is_self,
            counts_alone=is_added(self.positions),
            q_offset=q_offset,
            kv_mask=kv_mask if reads_padding(self.positions) else None,
        )
        if isinstance(held, Tensor) or held:
            check_growth(self.positions, places.length, key.shape[-2])
        call = self._asked(
            self._projected(query, key, value, places),
            allowed=joined(self.pattern, pattern, mask),
            kv_mask=kv_mask,
            bias=bias,
            q_offset=q_offset,
            held=held if is_self else None,
        )
        return project(self.W_o, self.combine_heads(mixed(call)))

    def project(
        self,
        query: Hidden,
        key: Memory | None = None,
        value: MemoryValue | None = None,
        *,
        q_offset: Offset | None = None,
        kv_offset: Offset = 0,
    ) -> tuple[Query, Key, Value]:
        """Return queries, keys and values with their heads split, (batch, heads, length, dim).

        They are normalised and placed as ``forward`` does it, for ``headwise.attend`` and
        ``headwise.attention_weights``.

        Args:
            query: As in ``forward``.
            key: As in ``forward``.
            value: As in ``forward``.
            q_offset: Position of the first query; ``None`` = that of the first key in
                self-attention, and otherwise the last query stands beside the last key.
            kv_offset: Position of the first key.
        """
        is_self = key is None
        key = query if key is None else key
        value = key if value is None else value
        check_inputs(self._widths, query, key, value)
        places = find_places(
            query,
            key,
            is_self=is_self,
            counts_alone=is_added(self.positions),
            q_offset=q_offset,
            kv_offset=kv_offset,
        )
        return self._projected(query, key, value, places)

    def explain(
        self,
        query: Hidden,
        key: Memory | None = None,
        value: MemoryValue | None = None,
        mask: Tensor | None = None,
        *,
        kv_mask: Tensor | None = None,
        pattern: Pattern | None = None,
        bias: Bias | None = None,
        q_offset: int | Tensor | None = None,
        cache: KVCache | None = None,
        layer: int | None = None,
    ) -> LayerPlan:
        """Say how ``forward`` would run these inputs and what that costs, without running them.

        Arguments are those of ``forward``; nothing is appended to ``cache``.

        Returns:
            A ``LayerPlan``, whose ``str`` reads well.

        Raises:
            ShapeError: Inputs that do not fit the layer; otherwise as ``forward``.
        """
        held: Offset = 0
        carried = False
        if cache is not None:
            check_cache(cache, key)
            slot = cache.peek(self, layer)
            held, carried = held_tokens(cache, slot), cache.state(slot) is not None
        is_self = key is None
        key = query if key is None else key
        value = key if value is None else value
        check_inputs(self._widths, query, key, value)
        read = longest((0 if carried else held) + key.shape[-2])
        q, k, v = projected_stand_ins(self, query, key, value, read)
        call = self._asked(
            (q, k, v),
            allowed=joined(self.pattern, pattern, mask),
            kv_mask=kv_mask,
            bias=bias,
            q_offset=q_offset,
            held=held if is_self else None,
        )
        context = context_stand_in(self, query, q, k, v)
        inputs = {"W_q": query, "W_k": key, "W_v": value, "W_o": context}
        layers = {name: (self.get_submodule(name), x) for name, x in inputs.items()}
        return plan_layer(call, self.mechanism, layers)

    @staticmethod
    def from_torch(module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """Return a layer with copies of the weights of torch's own, which computes the same.

        Every variant is taken. The result takes the batch first always, reads ``True`` as "may
        attend", returns no weights, and gives zeros where torch's layer gives NaN.

        Args:
            module: Torch's layer, itself: a subclass, hooks and parametrisations are refused.

        Raises:
            TypeError: A module that computes something else, or may.
        """
        from headwise.nn.from_torch import from_torch

        return from_torch(module)

    def split_heads(self, x: Tensor) -> Split:
        """Turn (batch, length, heads * d_k) into (batch, heads, length, d_k)."""
        return split(x, x.shape[-1] // self.d_k)

    def combine_heads(self, x: Split) -> Tensor:
        """Turn (batch, heads, length, dim) into (batch, length, heads * dim)."""
        return x.transpose(-3, -2).flatten(-2)

    def extra_repr(self) -> str:
        """Return the sizes that the projections do not show."""
        shown = f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, d_k={self.d_k}"
        return shown if self.pattern is None else f"{shown}, pattern={pattern_name(self.pattern)}"

    def _projected(
        self, query: Tensor, key: Tensor, value: Tensor, places: Places
    ) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (
            added_to(self.positions, x, place)
            for x, place in ((query, places.query), (key, places.key), (value, places.key))
        )
        q = self.split_heads(project(self.W_q, query))
        k = self.split_heads(project(self.W_k, key))
        v = project(self.W_v, value)
        v = self.split_heads(v) if self.value_dim == self.d_k else split(v, self.num_kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = normalised(self.q_norm, q), normalised(self.k_norm, k)
        return (*turned(self.positions, q, k, places), v)

    def _asked(
        self,
        projected: tuple[Tensor, Tensor, Tensor],
        *,
        allowed: Pattern | None,
        kv_mask: Tensor | None,
        bias: Bias | None,
        q_offset: Offset | None,
        held: Offset | None,
    ) -> AttentionCall:
        """Return what the mechanism is asked; ``held`` is ``None`` in cross attention."""
        return AttentionCall(
            *projected,
            pattern=allowed,
            kv_mask=kv_mask,
            bias=joined_bias(self.positions, bias),
            softcap=self.softcap,
            sinks=self.sinks,
            dropout_p=self.dropout if self.training else 0.0,
            q_offset=q_offset,
            kv_offset=0 if held is None or q_offset is None else q_offset - held,
        )

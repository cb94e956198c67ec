"""A transformer block: attention, cross attention where wanted, feed-forward."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from headwise._checks import is_int
from headwise._dims import Hidden, Memory
from headwise._forks import alone_after_fork
from headwise.cache import KVCache
from headwise.errors import ShapeError
from headwise.nn.arguments import check_dropout, check_flags, refuse_arguments
from headwise.nn.attention import MultiHeadAttention
from headwise.nn.feedforward import FeedForward
from headwise.nn.other_names import OF_BLOCK
from headwise.ops.softmax.settle_bias import Bias
from headwise.patterns import Pattern
from headwise.patterns.wording import pattern_name
from headwise.positions.bases import is_number

_NORMS: dict[str, Callable[..., nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


class TransformerBlock(nn.Module):
    """Parts beside a residual path, each with a norm before it or behind the sum.

    ``x + part(norm(x))`` with ``norm_first`` (pre-norm: GPT-2, Llama, T5), ``norm(x + part(x))``
    without (post-norm: "Attention Is All You Need", BERT, Marian). The parts are ``attention``,
    then ``cross_attention`` where there is one, then ``feed_forward``. What may see what, positions
    and heads are matters of the attention; a decoder's has ``pattern=headwise.Causal()``.

    Args:
        attention: Self-attention.
        feed_forward: What every token goes through alone.
        cross_attention: Attention to a memory, all of it but for ``memory_mask``; the norm before
            it leaves the memory as it is.
        norm: ``"layer"`` (mean and variance, weight and bias) or ``"rms"`` (weight alone). Norms
            are made where the attention's parameters are, in their dtype.
        eps: What the norms add to the variance.
        norm_first: Whether the norms stand before the parts.
        dropout: Share of what each part adds that is set to zero in training; dropout of weights
            and of inner numbers belongs to the parts.

    Raises:
        ShapeError: Parts of different widths.
        TypeError: Parts that are none, or a flag that is neither ``True`` nor ``False``.
        ValueError: A norm of another name, an ``eps`` below 0, a dropout that is no share, or cross
            attention that depends on where tokens stand.

    Example:
        >>> import torch, headwise as hw
        >>> attention = hw.MultiHeadAttention(16, 4, pattern=hw.Causal())
        >>> block = hw.nn.TransformerBlock(attention, hw.nn.FeedForward(16))
        >>> block(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        cross_attention: MultiHeadAttention | None = None,
        *,
        norm: str = "layer",
        eps: float = 1e-5,
        norm_first: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check_parts(attention, feed_forward, cross_attention)
        if norm not in _NORMS:
            raise ValueError(
                f"TransformerBlock: norm must be one of {', '.join(_NORMS)}, got {norm!r}\n"
                '  hint: "layer" is nn.LayerNorm, "rms" is nn.RMSNorm'
            )
        check_flags("TransformerBlock", norm_first=norm_first)
        check_dropout("TransformerBlock", dropout)
        if not is_number(eps) or eps < 0:
            raise ValueError(
                f"TransformerBlock: eps must be a finite number of at least 0, got {eps!r}\n"
                "  hint: 1e-5 is usual with nn.LayerNorm, 1e-6 with nn.RMSNorm"
            )
        self.norm_first = norm_first
        self.dropout = dropout

        def made() -> nn.Module:
            like = next(attention.parameters())
            return _NORMS[norm](attention.d_model, eps, device=like.device, dtype=like.dtype)

        self.attention = attention
        self.attention_norm = made()
        self.cross_attention = cross_attention
        self.cross_attention_norm = None if cross_attention is None else made()
        self.feed_forward = feed_forward
        self.feed_forward_norm = made()

    @alone_after_fork
    def forward(  # noqa: PLR0913
        self,
        x: Hidden | None = None,
        memory: Memory | None = None,
        mask: Tensor | None = None,
        *,
        kv_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        pattern: Pattern | None = None,
        bias: Bias | None = None,
        q_offset: int | Tensor | None = None,
        q_lengths: Sequence[int] | Tensor | None = None,
        cache: KVCache | None = None,
        memory_cache: KVCache | None = None,
        layer: int | None = None,
        **renamed: object,
    ) -> Hidden:
        """Map (batch, length, d_model) to the same.

        What is said of the tokens of ``x`` goes to ``attention`` and means what it means in
        ``MultiHeadAttention.forward``; none of it goes to ``cross_attention``.

        Args:
            x: (batch, length, d_model); without the batch dimension it is one sample.
            memory: (batch, memory_len, kv_dim of the cross attention), what that one reads.
            mask: (length, kv_len) or four dimensions, ``True`` = may attend.
            kv_mask: (batch, kv_len), ``True`` = real token; cached tokens included.
            memory_mask: (batch, memory_len), ``True`` = real token of the memory.
            pattern: Who may attend to whom in this call.
            bias: Numbers added to the scores, or an object of ``headwise.positions``.
            q_offset: Absolute position of the first token of ``x``.
            q_lengths: (batch,), how many of the new tokens of each row are real; the others, to the
                right, are not stored in the cache. ``None`` = all.
            cache: Where keys and values are appended and read.
            memory_cache: Where those of the memory are kept after the first call, for a
                ``cross_attention`` that can read them there; ``None`` = they are not kept.
            layer: The number of the attention in the caches.
            renamed: None are taken; arguments of other libraries are refused with their name here.

        Returns:
            (batch, length, d_model).

        Raises:
            ShapeError: Sizes that do not fit together.
            TypeError: A memory without cross attention, or the other way round; an argument that
                there is not.
        """
        if renamed or x is None:
            raise refuse_arguments(renamed, "TransformerBlock", "x", OF_BLOCK)
        self._check_memory(memory=memory, memory_mask=memory_mask, memory_cache=memory_cache)
        settings: dict[str, Any] = {
            "mask": mask,
            "kv_mask": kv_mask,
            "pattern": pattern,
            "bias": bias,
            "q_offset": q_offset,
            "q_lengths": q_lengths,
            "cache": cache,
            "layer": layer,
        }
        x = self._added(x, self.attention, self.attention_norm, **settings)
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            cross, norm = self.cross_attention, self.cross_attention_norm
            kept = {} if memory_cache is None else {"cache": memory_cache, "layer": layer}
            x = self._added(x, cross, norm, key=memory, kv_mask=memory_mask, **kept)
        return self._added(x, self.feed_forward, self.feed_forward_norm)

    def extra_repr(self) -> str:
        """Return what the parts do not show."""
        return f"norm_first={self.norm_first}, dropout={self.dropout}"

    def _added(self, x: Tensor, part: nn.Module, norm: nn.Module, **settings: Any) -> Tensor:  # noqa: ANN401
        made = part(norm(x) if self.norm_first else x, **settings)
        x = x + functional.dropout(made, self.dropout, self.training)
        found: Tensor = x if self.norm_first else norm(x)
        return found

    def _check_memory(self, **given: Tensor | KVCache | None) -> None:
        if self.cross_attention is None:
            unread = [name for name, tensor in given.items() if tensor is not None]
            if unread:
                raise TypeError(
                    f"TransformerBlock: there is nothing that reads {' and '.join(unread)}\n"
                    "  hint: give the block a cross_attention=MultiHeadAttention(…)"
                )
        elif given["memory"] is None:
            raise TypeError(
                "TransformerBlock: the block has cross attention, and memory is missing\n"
                "  hint: pass the encoder's output as memory="
            )


def _check_parts(
    attention: MultiHeadAttention, feed_forward: FeedForward, cross: MultiHeadAttention | None
) -> None:
    parts = {"attention": attention, "feed_forward": feed_forward}
    if cross is not None:
        parts["cross_attention"] = cross
    for name, part in parts.items():
        _check_part(name, part)
    widths = {name: part.d_model for name, part in parts.items()}
    if len(set(widths.values())) > 1:
        listed = ", ".join(f"{name} {width}" for name, width in widths.items())
        raise ShapeError(
            f"TransformerBlock: all parts must have the same d_model, got {listed}\n"
            "  hint: the width of a memory is kv_dim of cross_attention"
        )
    if cross is not None and not (cross.pattern is None and cross.positions is None):
        shown = None if cross.pattern is None else pattern_name(cross.pattern)
        raise ValueError(
            "TransformerBlock: cross_attention must have no pattern and no positions, for the "
            f"tokens of a memory have a count of their own, got {shown} and {cross.positions}\n"
            "  hint: call the layers one by one, and say with q_offset= where queries stand"
        )


def _check_part(name: str, part: object) -> None:
    """Refuse what cannot stand in a place; wrappers that pass attributes on can."""
    known = all(hasattr(part, each) for each in ("d_model", "num_heads", "positions"))
    wanted, fits = "a MultiHeadAttention", known
    if name == "feed_forward":
        wanted = "a FeedForward, or a module of yours with its width as d_model"
        fits = is_int(getattr(part, "d_model", None)) and not hasattr(part, "num_heads")
    if not isinstance(part, nn.Module) or not fits:
        shown = type(part).__name__ if isinstance(part, nn.Module) else repr(part)
        raise TypeError(
            f"TransformerBlock: {name} must be {wanted}, got {shown}\n"
            "  hint: make the parts before: TransformerBlock(MultiHeadAttention(512, 8), "
            "FeedForward(512)); cross attention is the third"
        )
